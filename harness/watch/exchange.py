"""Gives every rank the step times of all ranks, every few steps, without holding up the loop.

A block holds the parts of `every` steps. A rank sends it when its device has completed these steps, and reads the
gathered blocks later, when they have arrived. Blocks are taken in order, so all ranks see the same sequence. A rank
that stops sends NaN blocks. Every rank then sends as many as the most advanced rank may have started, so that no gather
stays pending.
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
    """Gathers blocks (steps x parts of this rank) into blocks (steps x ranks x parts).

    `shape` is that of one rank's block. `lead` is how many blocks a rank may be ahead of a block that it has not seen.
    """

    def __init__(self, control: Control | None, shape: tuple[int, int], lead: int) -> None:
        self._control = control
        self._shape = shape
        self._lead = lead
        self._sent = self._seen = 0
        self._block: list[list[float]] = []
        self.first = 0  # step with which the unfinished block begins
        self._pending: deque[tuple[int, list[torch.Tensor], dist.Work | None]] = deque()

    def add(self, parts: list[float]) -> None:
        """Add the parts of this rank's next step; sends the block when it is full."""
        self._block.append(parts)
        if len(self._block) == self._shape[0]:
            self._send(self.first, np.array(self._block))
            self.first += self._shape[0]
            self._block = []

    def _send(self, first: int, block: Values) -> None:
        self._sent += 1
        values = torch.from_numpy(block)
        if self._control is None:
            self._pending.append((first, [values], None))
            return
        gathered, work = self._control.gather_later(values)
        self._pending.append((first, gathered, work))

    def receive(self, until: int = -1) -> list[tuple[int, Values]]:
        """Return the blocks that have arrived, with their first steps; waits for blocks that begin up to `until`."""
        found = []
        while self._pending:
            first, gathered, work = self._pending[0]
            if work is not None:
                if first > until and not work.is_completed():
                    break
                work.wait()  # raises if another rank has gone
            self._pending.popleft()
            block = np.stack([values.numpy() for values in gathered], axis=1)
            self._seen += 1
            if np.isnan(block).any():
                self._send_nothing_after(self._seen - 1)
                raise RankGone("another rank has stopped watching")
            found.append((first, block))
        return found

    def stop(self) -> None:
        """Tell the other ranks that this one sends nothing more. Waits for none of them: the training goes on."""
        self._send_nothing_after(self._sent)

    def _send_nothing_after(self, block: int) -> None:
        while self._control is not None and self._sent <= block + self._lead:
            self._send(-1, np.full(self._shape, np.nan))

    def drain(self, timeout_s: float) -> list[tuple[int, Values]]:
        """Return the blocks that arrive within a time; gives up on the others."""
        deadline, found = time.monotonic() + timeout_s, self.receive()
        while self._pending and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            found += self.receive()
        return found
