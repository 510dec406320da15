"""Waits until gloo's threads are idle. In: /proc of this process. Out: whether they are idle.

torch.profiler frees its records when it stops, even records that are still open. After a collective, a gloo thread
first completes the collective's future, for which DDP waits, and then ends the collective's record (c10d's
`AsyncWork::finishWorkGloo`). The rank that the future woke often takes the core of that thread, and stops the profiler
before the thread runs again. Then the thread writes the end of the record into freed memory and corrupts the heap. A
barrier does not help, because another gloo thread serves it. Collectives of DDP have no handle in Python to wait for.
"""

import time
from collections.abc import Iterator
from pathlib import Path

_NAME = "pt_gloo_runloop"  # torch's name of the threads that run gloo's collectives
_TASKS = Path("/proc/self/task")
_POLL_S = 0.0005
_BLIND_S = 0.01  # how long to wait if the kernel does not show what a thread does


def wait_until_idle(limit_s: float) -> bool:
    """Wait until gloo's threads are idle. Returns False if they are still busy after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not all(map(_idle, _threads())):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _threads() -> Iterator[Path]:
    for task in _TASKS.glob("*"):
        try:
            if (task / "comm").read_text().strip() == _NAME:
                yield task
        except OSError:  # the thread has ended
            continue


def _idle(task: Path) -> bool:
    """Whether a gloo thread waits for work: in futex without a timeout. A wait for another rank has a timeout."""
    try:
        call = (task / "syscall").read_text().split()  # number, six arguments, stack, place; or "running"
    except OSError:
        if task.exists():  # otherwise the thread has ended
            time.sleep(_BLIND_S)
        return True
    return len(call) > 4 and call[4] == "0x0"
