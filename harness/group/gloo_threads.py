"""Waits until the threads of gloo have nothing in hand. In: /proc of this process. Out: whether they are idle.

torch.profiler frees its records when it stops, whoever still has one open. A thread of gloo that has done a collective
completes the collective's future first, for which DDP waits, and ends the collective's record after that (c10d's
`AsyncWork::finishWorkGloo`). The rank that the future woke often takes the thread's core, and stops the profiler before
the thread is back: then the record's end is written into freed memory, and the heap is broken. A barrier does not
help, since another thread of gloo serves it, and what DDP began has no handle in Python to wait for.
"""

import time
from collections.abc import Iterator
from pathlib import Path

_NAME = "pt_gloo_runloop"  # as torch calls the threads that do gloo's collectives
_TASKS = Path("/proc/self/task")
_POLL_S = 0.0005
_BLIND_S = 0.01  # where the kernel does not tell what a thread does


def wait_until_idle(limit_s: float) -> bool:
    """Wait until gloo has no collective under way or at its end in this process; False when it has after `limit_s`."""
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
        except OSError:  # it has ended
            continue


def _idle(task: Path) -> bool:
    """Whether a thread of gloo waits for work: inside futex, and without a limit, which waiting for a rank has."""
    try:
        call = (task / "syscall").read_text().split()  # number, six arguments, stack, place; or "running"
    except OSError:
        if task.exists():  # else it has ended
            time.sleep(_BLIND_S)
        return True
    return len(call) > 4 and call[4] == "0x0"
