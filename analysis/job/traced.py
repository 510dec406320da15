"""What the trace of a job may add to the verdict over its unprofiled steps: why a rank is late, and what waits cost.

Input: the traced steps and their verdict. Output: `Traced`. Definitions: docs/metrics.md, "Without the profiler".
"""

import msgspec
import numpy as np

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.analysis.job.cause import Why
from rankscope.analysis.job.host_pace import leads
from rankscope.analysis.job.window import Window
from rankscope.analysis.measure.stragglers import Verdict

BETWEEN = "between collectives, as the trace shows"


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of a trace whose steps last as long as the plain ones."""

    verdict: Verdict
    exposed_share: float = 0.0  # of the waits in collectives: how much of them nothing computes in

    @classmethod
    def of(cls, verdict: Verdict, steps: Table) -> "Traced":
        """Take the verdict and the analysed steps of a trace."""
        waits, exposed = steps["wait_ns"], steps["exposed_wait_ns"]
        known = (waits != UNKNOWN) & (exposed != UNKNOWN)
        total = float(waits[known].sum())
        share = float(exposed[known].sum()) / total if total > 0 else 0.0
        return cls(verdict=verdict, exposed_share=min(1.0, share))

    def cause_of(self, window: Window, at: int, lateness_ns: float, limits: Limits) -> Why | None:
        """Return that the rank at position `at` computes for longer, if the trace shows it; otherwise None.

        In FSDP, tensor and expert parallel jobs the ranks also wait for each other in the forward pass, so every part
        of the step lasts equally long on all of them. The trace sees what is computed between the collectives. It
        explains the lateness only if all devices have work queued, because then no host can be the reason.
        """
        late = [item for item in self.verdict.per_step if item.rank == window.ranks[at]]
        if not late or not leads(window).all() or self.verdict.ranks != [window.ranks[at]]:
            return None
        longer = float(np.median([item.excess_ns["compute"] for item in late]))
        share = min(1.0, longer / float(np.median([item.lateness_ns for item in late])))
        if self.verdict.cause != "compute" or share < limits.cause_share:
            return None
        return Why(cause="compute", part=BETWEEN, excess_ns=share * lateness_ns)
