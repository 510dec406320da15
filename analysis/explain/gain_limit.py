"""How much a fix can bring at most: the plain step without what the device computes and transfers anyway.

A traced step may wait longer for the host, for batches or for other ranks than the plain one does, since the profiler
slows the host. Computing and exposed transfer are the device's own, which it does not slow: no fix of something else
brings the step below them. Source: docs/metrics.md, "Recoverable time".
"""

import msgspec
import numpy as np

from rankscope.analysis.core.table import UNKNOWN, Table

_OF_COMPUTING = ("low_tensor_core_use", "memory_bound", "compute_bound")
_OF_TRANSFERS = (
    "exposed_comm", "no_overlap", "large_last_bucket", "small_buckets", "sync_every_micro_step",
    "unused_parameters_scan",
)  # fmt: skip
_OF_ONE_RANK = ("straggler_", "throttled")


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """The plain step (ms) and the analysed steps of every rank."""

    step_ms: float
    steps: Table

    @classmethod
    def of(cls, steps: Table, step_ms: float | None) -> "Room | None":
        """Return what is known; None without a plain step, or without an analysed one."""
        return None if step_ms is None or not len(steps) else cls(step_ms=step_ms, steps=steps)

    def for_finding(self, name: str, ranks: list[int]) -> float | None:
        """Return the most (ms a step) that a fix of a finding can bring; None where that cannot be said.

        It cannot where computing itself would shrink, and where the device computed for longer in the traced pass
        than the whole plain step takes. A late rank that is mended is as fast as the others, so theirs is the
        device's time that is left.
        """
        if name in _OF_COMPUTING:
            return None
        table = self.steps
        if name.startswith(_OF_ONE_RANK) and len(ranks) == 1 and (table["rank"] != ranks[0]).any():
            table = table.take(table["rank"] != ranks[0])
        busy = table["compute_ns"].astype(float)
        if name not in _OF_TRANSFERS:
            busy = busy + np.where(table["exposed_transfer_ns"] == UNKNOWN, 0, table["exposed_transfer_ns"])
        longest = [busy[table["step"] == step].max() for step in np.unique(table["step"]).tolist()]
        left = self.step_ms - float(np.mean(longest)) * 1e-6
        return left if left > 0 else None
