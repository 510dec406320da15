"""The most that a fix can save: the plain step minus the compute and exposed transfer that remain in any case.

A traced step may wait longer for the host, for batches or for other ranks than the plain step does, because the
profiler slows the host. It does not slow compute and exposed transfer, so no fix of anything else makes the step
shorter than these. Source: docs/metrics.md, "Recoverable time".
"""

import msgspec
import numpy as np

from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.analysis.explain.rule import Remains


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """The plain step (ms) and the analysed steps of every rank."""

    step_ms: float
    steps: Table

    @classmethod
    def of(cls, steps: Table, step_ms: float | None) -> "Room | None":
        """Return what is known; None without a plain step or without an analysed step."""
        return None if step_ms is None or not len(steps) else cls(step_ms=step_ms, steps=steps)

    def left(self, remains: Remains, ranks: list[int]) -> float | None:
        """Return the most (ms per step) that a fix on `ranks` can save.

        None if the fix would shorten compute itself, or if the traced device time exceeds the plain step. For one late
        rank the others' device time counts, because a fixed rank is as fast as they are.
        """
        if remains == "nothing":
            return None
        table = self.steps
        if remains == "others' work" and len(ranks) == 1 and (table["rank"] != ranks[0]).any():
            table = table.take(table["rank"] != ranks[0])
        busy = table["compute_ns"].astype(float)
        if remains != "compute":
            busy = busy + np.where(table["exposed_transfer_ns"] == UNKNOWN, 0, table["exposed_transfer_ns"])
        longest = [busy[table["step"] == step].max() for step in np.unique(table["step"]).tolist()]
        left = self.step_ms - float(np.mean(longest)) * 1e-6
        return left if left > 0 else None
