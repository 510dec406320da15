"""Lets the runs that share a host measure one after another, while they start and are analysed beside each other.

A run that waits must not touch a GPU: while others set up their process groups there, a job's kernels were seen to be
up to a fifth slower. So ranks wait before they meet: rank 0 for the lock, the others for what rank 0 leaves in the
folder of the pass.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rankscope.conf.run_dir import PassDir

_POLL_S = 0.02


@contextmanager
def turn(path: str | None, pass_dir: PassDir, rank: int) -> Iterator[None]:
    """Hold the lock on `path` during the block; without a path nothing is waited for.

    When the process of rank 0 ends, in whatever way, the kernel gives the lock back.
    """
    if path is None:
        yield
    elif rank == 0:
        with Path(path).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            pass_dir.turn.touch()
            yield
    else:
        parent = os.getppid()
        while not pass_dir.turn.exists() and os.getppid() == parent:
            time.sleep(_POLL_S)
        yield
