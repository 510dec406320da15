"""Tells the launcher how far this rank is (progress.json), and where it hangs when asked (stack.txt).

`kill -USR1 <pid>` makes the rank write the Python stacks of all its threads to `stack.txt` in its folder, also while
it waits inside a collective.
"""

import faulthandler
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from rankscope.conf.files import write_json
from rankscope.conf.run_dir import RankDir

Stage = Literal["setup", "warmup", "measure", "export", "done"]

INTERVAL_NS = 500_000_000


class Progress:
    """Rewrites progress.json: at once when the phase changes, else at most twice a second."""

    def __init__(self, rank_dir: RankDir, of: int) -> None:
        self._rank_dir = rank_dir
        self._of = of
        self._phase: Stage | None = None
        self._step = 0
        self._written_ns = 0
        self.enter("setup")

    def update(self, phase: Stage, step: int) -> None:
        """Say that `step` steps are done and that the rank is in `phase`."""
        now = time.monotonic_ns()
        self._step = step
        if phase == self._phase and now - self._written_ns < INTERVAL_NS:
            return
        self._phase, self._written_ns = phase, now
        write_json(
            self._rank_dir.progress,
            {"phase": phase, "step": step, "of": self._of, "pid": os.getpid(), "time": time.time()},
        )

    def enter(self, phase: Stage) -> None:
        """Change the phase at the present step."""
        self.update(phase, self._step)


@contextmanager
def reporting(rank_dir: RankDir, of: int) -> Iterator[Progress]:
    """Give the progress of a rank of `of` steps, and answer SIGUSR1 while the block runs."""
    with rank_dir.stack.open("w") as stack:
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
        try:
            yield Progress(rank_dir, of)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
