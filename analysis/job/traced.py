"""What the trace of a job may add to the verdict over its unprofiled steps: why a rank is late, and what waits cost.

Input: the traced steps. Output: `Traced`. Definitions: docs/metrics.md, "Without the profiler".
"""

import msgspec
import numpy as np

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.parts import BETWEEN_COLLECTIVES
from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.analysis.job.cause import Why
from rankscope.analysis.job.host_pace import leads
from rankscope.analysis.job.window import Window


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """A trace whose steps last as long as the plain ones; times in ns per step."""

    compute_ns: dict[int, float]  # by rank: what its device computes
    exposed_share: float = 0.0  # of the waits in collectives: how much of them nothing computes in

    @classmethod
    def of(cls, steps: Table) -> "Traced":
        """Take the analysed steps of a trace."""
        waits, exposed = steps["wait_ns"], steps["exposed_wait_ns"]
        known = (waits != UNKNOWN) & (exposed != UNKNOWN)
        total = float(waits[known].sum())
        share = float(exposed[known].sum()) / total if total > 0 else 0.0
        ranks: list[int] = np.unique(steps["rank"]).tolist()
        compute = {rank: float(steps["compute_ns"][steps["rank"] == rank].mean()) for rank in ranks}
        return cls(compute_ns=compute, exposed_share=min(1.0, share))

    def cause_of(self, window: Window, at: int, lateness_ns: float, limits: Limits) -> Why | None:
        """Return that the rank at position `at` computes for longer, if the trace shows it; otherwise None.

        In FSDP, tensor and expert parallel jobs the ranks also wait for each other in the forward pass, so every part
        of the step lasts equally long on all of them. The trace sees what is computed between the collectives. It
        explains the lateness only if all devices have work queued, because then no host can be the reason.
        """
        own, others = window.ranks[at], [rank for rank in window.ranks if rank != window.ranks[at]]
        if not set(window.ranks) <= set(self.compute_ns) or not leads(window).all():
            return None
        longer = self.compute_ns[own] - float(np.median([self.compute_ns[rank] for rank in others]))
        if longer < limits.cause_share * lateness_ns:
            return None
        return Why(cause="compute", part=BETWEEN_COLLECTIVES, excess_ns=longer, holds_passes=True)
