"""`Facts`: what the rules about bottlenecks look at, and the arithmetic of what a fix would bring.

A fix that removes x_r from each rank's segment brings max_r seg_r - max_r (seg_r - x_r), averaged over the steps,
where a rank's segment is its step without exposed waiting (docs/metrics.md, "Recoverable time").
"""

from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.job.late_rank import JobVerdict
from rankscope.analysis.job.slow_steps import SlowSteps
from rankscope.analysis.measure.ceilings import Ceilings
from rankscope.analysis.measure.stragglers import Verdict
from rankscope.conf import RunConfig


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The analysed steps and what is known beside them."""

    steps: Table  # one row a step and rank
    verdict: Verdict
    calls: Table | None = None  # collectives of all steps, one row a call and rank
    activity: Table | None = None  # activity.ACTIVITY with `rank`, rows as in `steps`
    syncs: Table | None = None  # activity.SYNCS with `rank`
    clocks: dict[int, dict[str, float]] = {}  # by rank: NVML's mean clock (MHz) and reasons to throttle (bits)
    loader: list[dict[str, Any]] = []  # as loader.loader_waits gives it
    config: RunConfig | None = None
    ceilings: Ceilings | None = None
    gpu: bool = True
    profiler: str = "torch"  # the pass whose steps these are
    overhead: float | None = None  # traced step / plain step
    light_tried: bool = False  # whether a light pass was recorded too
    job: JobVerdict | None = None  # which rank is late without a profiler; None: no window can tell
    slow: SlowSteps | None = None
    loader_cpu: tuple[float, int] | None = None  # as loader.on_cpu gives it

    @property
    def step_ns(self) -> float:
        """The median step (ns)."""
        return float(np.median(self.steps["step_ns"]))

    @property
    def ranks(self) -> list[int]:
        """Every rank."""
        ranks: list[int] = np.unique(self.steps["rank"]).tolist()
        return ranks

    @property
    def count(self) -> int:
        """How many steps are analysed."""
        return len(np.unique(self.steps["step"]))

    def gain(self, removed: Column) -> float:
        """Return what the job's step would lose (ns, mean) if each row's segment lost `removed` (ns)."""
        _, index = np.unique(self.steps["step"], return_inverse=True)
        waited = np.where(self.steps["exposed_wait_ns"] == UNKNOWN, 0, self.steps["exposed_wait_ns"])
        segment = self.steps["step_ns"] - waited
        return float((_largest(segment, index) - _largest(segment - removed, index)).mean())

    def per_rank(self, values: Column) -> dict[int, float]:
        """Return the mean of a column of rows by rank."""
        return {rank: float(values[self.steps["rank"] == rank].mean()) for rank in self.ranks}

    def mean(self, name: str) -> float:
        """Return the mean of a column of the activity over ranks and steps; 0 without one."""
        return 0.0 if self.activity is None else float(self.activity[name].mean())

    def all_reduces(self) -> Table | None:
        """Return one row a matched all-reduce of the analysed steps, in the order of their starts; None without."""
        if self.calls is None:
            return None
        kind = self.calls.where("kind", lambda word: word == "allreduce")
        chosen = kind & (self.calls["call"] >= 0) & np.isin(self.calls["step"], self.steps["step"])
        rows = np.flatnonzero(chosen & (self.calls["group_size"] != 1))
        _, first = np.unique(self.calls["call"][rows], return_index=True)
        table = self.calls.take(rows[np.sort(first)])
        return table.sort("start_ns") if len(table) else None


def _largest(values: Column, index: Column) -> Column:
    result = np.full(index.max() + 1, np.iinfo(np.int64).min)
    np.maximum.at(result, index, values)
    return result
