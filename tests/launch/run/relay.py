"""A link with a delay between two network namespaces: one TUN device in each, packets cross DELAY seconds later.

Usage (as root): relay.py NAMESPACE1 DEVICE1 NAMESPACE2 DEVICE2 DELAY. Says `up` when the devices are there; they go
with this process. For kernels without netem, which would do the same.
"""

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_LARGEST = 65536


def device(namespace: str, name: str) -> int:
    """Make a TUN device in a namespace; returns what its packets are read from and written to."""
    place = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(place, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"setns {namespace}")
    os.close(place)
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return tun


def relay(first: int, second: int, delay_s: float) -> None:
    """Carry packets both ways for ever."""
    other = {first: second, second: first}
    waiting: deque[tuple[float, int, bytes]] = deque()  # when it is due, to which device
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for ready in select.select([first, second], [], [], timeout)[0]:
            try:
                while packet := os.read(ready, _LARGEST):
                    waiting.append((time.monotonic() + delay_s, other[ready], packet))
            except OSError:  # no packet is left, or the device is down
                pass
        while waiting and waiting[0][0] <= time.monotonic():
            _, target, packet = waiting.popleft()
            try:
                os.write(target, packet)
            except OSError:  # down, or its queue is full: the packet is lost
                pass


if __name__ == "__main__":
    devices = device(*sys.argv[1:3]), device(*sys.argv[3:5])
    print("up", flush=True)
    relay(*devices, float(sys.argv[5]))
