"""The most that a fix can save: the plain step minus the work that remains in any case.

A traced step may wait longer for the host, for batches or for other ranks than the plain step does, because the
profiler slows the host. It does not slow the compute and the exposed transfer of a device, so no fix of anything else
makes the step shorter than these. On a CPU it slows compute too. There the plain pass says how long the thread of the
steps had a core. Source: docs/metrics.md, "Recoverable time".
"""

import msgspec
import numpy as np

from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.analysis.explain.rule import Part, Remains
from rankscope.analysis.job.cpu_use import CpuUse


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """The plain step (ms), the analysed steps of every rank, and on a CPU what the ranks' threads did."""

    step_ms: float
    steps: Table
    gpu: bool = True
    cpu: CpuUse | None = None
    data_wait_ms: float | None = None  # the mean wait for a batch in the plain pass, on the rank that waits longest

    @classmethod
    def of(
        cls, steps: Table, step_ms: float | None, *, gpu: bool = True, cpu: CpuUse | None = None,
        data_wait_ms: float | None = None,
    ) -> "Room | None":  # fmt: skip
        """Return what is known; None without a plain step or without an analysed step."""
        if step_ms is None or not len(steps):
            return None
        return cls(step_ms=step_ms, steps=steps, gpu=gpu, cpu=cpu, data_wait_ms=data_wait_ms)

    def left(self, remains: Remains, ranks: list[int], part: Part | None = None) -> float | None:
        """Return the most (ms per step) that a fix of this part on `ranks` can save; None: no limit is known."""
        beside = self._beside_work(remains, ranks, part)
        waits = self.data_wait_ms if part == "loader" else None
        known = [limit for limit in (beside, waits) if limit is not None]
        return min(known) if known else None

    def _beside_work(self, remains: Remains, ranks: list[int], part: Part | None) -> float | None:
        """Return what the plain step has beside the work that remains.

        None if the fix would shorten compute itself, or if the traced device time exceeds the plain step. For one late
        rank the others' device time counts, because a fixed rank is as fast as they are.
        """
        if remains == "nothing":
            return None
        if not self.gpu:
            return None if self.cpu is None else self._left_on_cpu(self.cpu, remains, ranks, part)
        table = self.steps
        if remains == "others' work" and len(ranks) == 1 and (table["rank"] != ranks[0]).any():
            table = table.take(table["rank"] != ranks[0])
        busy = table["compute_ns"].astype(float)
        if remains != "compute":
            busy = busy + np.where(table["exposed_transfer_ns"] == UNKNOWN, 0, table["exposed_transfer_ns"])
        longest = [busy[table["step"] == step].max() for step in np.unique(table["step"]).tolist()]
        left = self.step_ms - float(np.mean(longest)) * 1e-6
        return left if left > 0 else None

    def _left_on_cpu(self, cpu: CpuUse, remains: Remains, ranks: list[int], part: Part | None) -> float:
        """Return what the step has beside the thread's work; of gaps between launches only what the thread slept."""
        if part == "launches" and remains != "others' work":
            return min(cpu.idle_ms.values())  # a rank that sleeps longer than this waits for others
        work = dict(cpu.work_ms)
        if remains == "others' work" and len(ranks) == 1 and len(work) > 1:
            work.pop(ranks[0], None)
        return max(0.0, self.step_ms - max(work.values()))
