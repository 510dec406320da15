"""Lets the runs that share a host measure one after another, while they start and are analysed beside each other.

While others set up their process groups on the same GPUs, a job's kernels were seen to be up to a fifth slower. So no
run sets up while one measures, and none measures while one sets up; several may set up at once. The lock of a file says
it: shared by every rank that sets up, held alone by rank 0 of the run that measures.
"""

import fcntl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self, TextIO

from rankscope.conf.contract import TURN
from rankscope.conf.run_dir import PassDir
from rankscope.harness.record.progress import Progress

_POLL_S = 0.02


class Turn:
    """One rank's place among the runs that name the same file, inside the block; without a file it waits for none.

    When the process of a rank ends, in whatever way, the kernel gives its lock back.
    """

    def __init__(self, path: str | None, pass_dir: PassDir, rank: int) -> None:
        self._file = None if path is None else Path(path).open("a")
        self._measures = pass_dir.turn  # exists once rank 0 holds the lock alone
        self._leads = rank == 0

    def __enter__(self) -> Self:
        """Wait until no other run measures: from here on the rank may touch a GPU."""
        if (file := self._file) is not None:
            _wait(lambda: self._measures.exists() or _shared(file))
        return self

    def measure(self, progress: Progress) -> None:
        """Wait until no other run sets up or measures; every rank of a run calls this, between two collectives.

        Rank 0 waits for the lock, the others for what it then leaves in the folder of the pass.
        """
        if self._file is None:
            return
        progress.enter(TURN)
        if self._leads:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._measures.touch()
        else:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            _wait(self._measures.exists)
        progress.enter("setup")

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)  # a loader's processes have the file open, too
            self._file.close()


def _wait(condition: Callable[[], bool]) -> None:
    while not condition():  # a rank whose torchrun has ended is ended, too: die_with_parent, or under nsys the shield
        time.sleep(_POLL_S)


def _shared(file: TextIO) -> bool:
    """Whether the lock is had, shared with others that set up."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
