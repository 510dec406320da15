"""The ranks' own numbers, given to every rank every few steps, without holding the loop up.

A block holds the parts of `every` steps. A rank sends it once its device is past these steps and looks at what came
later, when it is there. Blocks are taken in order, so all ranks see the same sequence. A rank that stops says so by
blocks of NaN, of which every rank then sends as many as any of them may have begun: nothing stays under way.
"""

import time
from collections import deque

import numpy as np
import torch
import torch.distributed as dist

from rankscope.harness.group.control import Control
from rankscope.harness.watch.exact_tests import Values

_POLL_S = 0.01


class RankGone(RuntimeError):
    """A rank has stopped sending."""


class Exchange:
    """Gathers blocks (steps x parts of this rank) into blocks (steps x ranks x parts)."""

    def __init__(self, control: Control | None, shape: tuple[int, int], lead: int) -> None:
        self._control = control
        self._shape = shape  # of a block: steps, parts
        self._lead = lead  # how many blocks a rank may be ahead of one that it has not seen
        self._sent = self._seen = 0
        self._under_way: deque[tuple[int, list[torch.Tensor], dist.Work | None]] = deque()

    def send(self, first: int, block: Values) -> None:
        """Give the block of the steps from `first` on to all ranks."""
        self._sent += 1
        values = torch.from_numpy(block)
        if self._control is None:
            self._under_way.append((first, [values], None))
            return
        gathered, work = self._control.gather_later(values)
        self._under_way.append((first, gathered, work))

    def receive(self, until: int = -1) -> list[tuple[int, Values]]:
        """Return the blocks that are there by now; those that begin at or before the step `until` are waited for."""
        found = []
        while self._under_way:
            first, gathered, work = self._under_way[0]
            if work is not None:
                if first > until and not work.is_completed():
                    break
                work.wait()  # raises where another rank has gone
            self._under_way.popleft()
            block = np.stack([values.numpy() for values in gathered], axis=1)
            self._seen += 1
            if np.isnan(block).any():
                self._say_nothing(self._seen - 1)
                raise RankGone("another rank has stopped watching")
            found.append((first, block))
        return found

    def stop(self) -> None:
        """Say that this rank sends nothing more, and wait for nobody: the training goes on."""
        self._say_nothing(self._sent)

    def _say_nothing(self, block: int) -> None:
        while self._control is not None and self._sent <= block + self._lead:
            self.send(-1, np.full(self._shape, np.nan))

    def drain(self, timeout_s: float) -> list[tuple[int, Values]]:
        """Return the blocks that come within a time; the rest is given up."""
        deadline, found = time.monotonic() + timeout_s, self.receive()
        while self._under_way and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            found += self.receive()
        return found
