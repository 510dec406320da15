"""Tells the launcher how far this rank is (progress.json), and on request where it hangs (stack.txt).

`kill -s RTMAX-2 <pid>` makes the rank write the Python stacks of all its threads to `stack.txt` in its folder, even
while it waits inside a collective.
"""

import faulthandler
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rankscope.conf.contract import STACKS, Stage
from rankscope.conf.files import write_text
from rankscope.conf.run_dir import RankDir

INTERVAL_NS = 500_000_000
_LENGTH = 240  # the text is padded, so that each write covers the previous one


class Progress:
    """Rewrites progress.json: immediately when the phase changes, otherwise at most twice a second.

    After the first time it writes in place, in one call of a few microseconds. A new file and a rename each time, as
    for all other files, cost one percent of short steps.
    """

    def __init__(self, rank_dir: RankDir, of: int) -> None:
        self._of = of
        self._phase: Stage = "setup"
        self._step = 0
        self._alone = 0
        self._batches = 0
        self._backwards = 0
        self._written_ns = time.monotonic_ns()
        write_text(rank_dir.progress, self._text())
        self._file = os.open(rank_dir.progress, os.O_WRONLY)

    def update(self, phase: Stage, step: int) -> None:
        """Report that `step` steps are done and that the rank is in `phase`."""
        now = time.monotonic_ns()
        self._step = step
        if phase == self._phase and now - self._written_ns < INTERVAL_NS:
            return
        self._phase, self._written_ns = phase, now
        os.pwrite(self._file, self._text().encode(), 0)

    def enter(self, phase: Stage) -> None:
        """Report a new phase at the current step."""
        self.update(phase, self._step)

    def step_alone(self) -> None:
        """Report a step that does not count, because other ranks do not step yet."""
        self._alone += 1
        self.update(self._phase, self._step)

    def batch(self) -> None:
        """Report a batch of any loader: a script that evaluates makes no step, and does not stand still."""
        self._batches += 1
        self.update(self._phase, self._step)

    def no_step(self, backwards: int) -> None:
        """Report that so many backward passes have gone by, and that no step was found."""
        self._backwards = backwards
        self.update(self._phase, self._step)

    def expect(self, steps: int) -> None:
        """Report a new total number of steps from now on."""
        self._of = steps

    def close(self) -> None:
        os.close(self._file)

    def _text(self) -> str:
        state = {
            "phase": self._phase,
            "step": self._step,
            "of": self._of,
            "pid": os.getpid(),
            "time": time.time(),
            "alone": self._alone,
            "batches": self._batches,
            "backwards": self._backwards,
            "stacks": signal.getsignal(STACKS) == signal.SIG_DFL,
        }
        return json.dumps(state).ljust(_LENGTH) + "\n"


@contextmanager
def reporting(rank_dir: RankDir, of: int) -> Iterator[Progress]:
    """Yield the progress of a rank that runs `of` steps."""
    progress = Progress(rank_dir, of)
    try:
        yield progress
    finally:
        progress.close()


def answer_for_stacks(rank_dir: RankDir) -> None:
    """Answer a signal until the process ends, because a rank can also hang after its work is done.

    No signal that scripts use: SIGUSR1 is how SLURM announces the end of a job. If a script handles this one, too,
    progress.json says so, and it is not sent.
    """
    faulthandler.register(STACKS, file=rank_dir.stack.open("w"), all_threads=True)
