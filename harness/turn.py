"""Lets the runs that share a host measure one after another, while they start and are analysed beside each other."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rankscope.harness.process_group import RankContext


@contextmanager
def turn(path: str | None, context: RankContext) -> Iterator[None]:
    """Hold the lock on `path` during the block; without a path nothing is waited for.

    Rank 0 holds it for its run, and the other ranks wait for rank 0, on the CPU. When the process of rank 0 ends,
    in whatever way, the kernel gives the lock back.
    """
    if path is None:
        yield
    elif context.rank == 0:
        with Path(path).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            context.barrier()
            yield
    else:
        context.barrier()
        yield
