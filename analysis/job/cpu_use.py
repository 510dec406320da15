"""What the ranks' step threads did with the cores in the plain window: computed, waited for a core, or slept.

Input: the plain `Window`. Output: `CpuUse`, None if the recording does not say (older ones, systems without schedstat).
"""

import msgspec
import numpy as np

from rankscope.analysis.job.variation import waited_for_core, waited_for_others
from rankscope.analysis.job.window import Window
from rankscope.conf.contract import DATA_WAIT


class CpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """By rank: medians over the counted steps (ms), and the share of the wanted CPU time that the thread got."""

    got: dict[int, float]  # time on a core / (time on a core + time waiting for one), over all steps
    work_ms: dict[int, float]  # on a core outside the loader, or waiting for one: no fix of a wait removes it
    idle_ms: dict[int, float]  # neither of these, and not waiting for the loader or for other ranks

    @property
    def least(self) -> int:
        """The rank that got the smallest share."""
        return min(self.got, key=lambda rank: self.got[rank])

    @classmethod
    def of(cls, window: Window) -> "CpuUse | None":
        """Return what is known of all ranks."""
        window = window.only(window.counted)
        waited, busy = waited_for_core(window), window.columns.get("cpu_ns")
        if waited is None or busy is None or np.isnan(busy).any() or not window.steps:
            return None
        work = np.maximum(0.0, busy - window.part("data_cpu")) + waited
        others = 0.0 if window.on_device else waited_for_others(window)
        idle = np.maximum(0.0, window.columns["host_ns"] - work - window.part(DATA_WAIT) - others)
        wanted = np.maximum(1.0, (busy + waited).sum(1))
        return cls(
            got={rank: float(share) for rank, share in zip(window.ranks, busy.sum(1) / wanted, strict=True)},
            work_ms={rank: float(np.median(row)) * 1e-6 for rank, row in zip(window.ranks, work, strict=True)},
            idle_ms={rank: float(np.median(row)) * 1e-6 for rank, row in zip(window.ranks, idle, strict=True)},
        )


def data_wait_ms(window: Window) -> float | None:
    """Return the mean wait for a batch (ms) over the counted steps, on the rank that waits longest; None if unknown.

    On a CPU the thread also waits for a core during this time, and that is not the loader's: in proportion.
    """
    window = window.only(window.counted)
    wait, waited = window.columns.get("data_wait_ns"), waited_for_core(window)
    if wait is None or np.isnan(wait).any() or not window.steps:
        return None
    if waited is not None and not window.on_device:
        wait = wait * np.maximum(0.0, 1 - waited / window.columns["host_ns"])
    return float(wait.mean(1).max()) * 1e-6
