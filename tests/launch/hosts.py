"""Two hosts on one machine: network namespaces with a host name, an address and a hosts file each. Needs root."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME = f"rs{os.getpid()}h"  # several test processes may have their own hosts
_INSIDE = 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"'


def missing() -> str | None:
    """Return why there can be no hosts here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    tools = [name for name in ("ip", "nsenter", "unshare", "mount") if shutil.which(name) is None]
    if tools:
        return f"not installed: {', '.join(tools)} (iproute2, util-linux)"
    tried = subprocess.run(["ip", "netns", "add", f"{_NAME}0"], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", f"{_NAME}0"], capture_output=True)
    return None if tried.returncode == 0 else f"no network namespaces here: {tried.stderr.strip()}"


class Hosts:
    """The hosts `host1` and `host2`; `command` puts a command on one of them."""

    def __init__(self, folder: Path) -> None:
        self._files = {}
        for number in (1, 2):
            path = folder / f"hosts{number}"
            path.write_text("127.0.0.1 localhost\n10.87.0.1 host1\n10.87.0.2 host2\n")
            self._files[number] = path

    def command(self, number: int, *command: str) -> list[str]:
        """Return `command` as it runs on host `number`."""
        inside = ["sh", "-c", _INSIDE, "sh", f"host{number}", str(self._files[number]), *command]
        return ["nsenter", f"--net=/run/netns/{_NAME}{number}", "unshare", "--uts", "--mount", *inside]

    def cut(self) -> None:
        """Take the link between the hosts down."""
        _ip("-n", f"{_NAME}2", "link", "set", "rsv2", "down")


@contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """Make the two hosts, and take them away at the end."""
    try:
        for number in (1, 2):
            _ip("netns", "add", f"{_NAME}{number}")
        _ip("link", "add", "rsv1", "netns", f"{_NAME}1", "type", "veth", "peer", "name", "rsv2", "netns", f"{_NAME}2")
        for number in (1, 2):
            _ip("-n", f"{_NAME}{number}", "addr", "add", f"10.87.0.{number}/24", "dev", f"rsv{number}")
            for link in (f"rsv{number}", "lo"):
                _ip("-n", f"{_NAME}{number}", "link", "set", link, "up")
        yield Hosts(folder)
    finally:
        for number in (1, 2):
            subprocess.run(["ip", "netns", "del", f"{_NAME}{number}"], capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
