"""Lets the runs that share a host measure one after another, while their start and analysis may overlap.

Kernels were seen to be up to a fifth slower while other runs set up their process groups on the same GPUs. So no run
sets up while another measures, and none measures while another sets up; several may set up at the same time. A file
lock enforces this: shared during setup, exclusive for rank 0 of the run that measures.
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
    """One rank's turn among the runs with the same file, inside the block; without a file it waits for nobody.

    The kernel releases the lock when the process ends, in whatever way.
    """

    def __init__(self, path: str | None, pass_dir: PassDir, rank: int) -> None:
        self._file = None if path is None else Path(path).open("a")
        self._measures = pass_dir.turn  # exists once rank 0 holds the lock exclusively
        self._leads = rank == 0

    def __enter__(self) -> Self:
        """Wait until no other run measures. From here on the rank may use a GPU."""
        if (file := self._file) is not None:
            _wait(lambda: self._measures.exists() or _shared(file))
        return self

    def measure(self, progress: Progress) -> None:
        """Wait until no other run sets up or measures; every rank of a run calls this, between two collectives.

        Rank 0 waits for the lock, the others for the file that rank 0 then creates in the folder of the pass.
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
            fcntl.flock(self._file, fcntl.LOCK_UN)  # closing is not enough: loader workers have the file open, too
            self._file.close()


def _wait(condition: Callable[[], bool]) -> None:
    # no timeout needed: if torchrun dies, die_with_parent (under nsys: the shield) ends this rank
    while not condition():
        time.sleep(_POLL_S)


def _shared(file: TextIO) -> bool:
    """Try to take the lock in shared mode; False if a run holds it exclusively."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
