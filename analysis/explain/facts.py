"""`Facts`: the input of the rules, and the arithmetic of what a fix would save.

A fix that removes x_r from each rank's segment saves max_r seg_r - max_r (seg_r - x_r), averaged over the steps.
A rank's segment is its step without exposed wait (docs/metrics.md, "Recoverable time").
"""

from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.job.cpu_use import CpuUse
from rankscope.analysis.job.late_rank import JobVerdict
from rankscope.analysis.job.slow_steps import SlowSteps
from rankscope.analysis.measure.ceilings import Ceilings
from rankscope.analysis.measure.dimensions import exchanging
from rankscope.analysis.measure.pipeline_stages import Pipeline
from rankscope.analysis.measure.stragglers import Verdict
from rankscope.analysis.rank.rank_data import DeviceModel
from rankscope.conf import RunConfig

OF_DIMENSION = " of "  # between kind and dimension, in the keys of `Facts.exposed_by_kind`


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The analysed steps, and what else is known about the job."""

    steps: Table  # one row per step and rank
    verdict: Verdict
    calls: Table | None = None  # collectives of all steps, one row per call and rank
    activity: Table | None = None  # activity.ACTIVITY with `rank`, rows as in `steps`
    syncs: Table | None = None  # activity.SYNCS with `rank`
    clocks: dict[int, dict[str, float]] = {}  # by rank: NVML's mean clock (MHz) and reasons to throttle (bits)
    loader: list[dict[str, Any]] = []  # from loader.loader_waits
    config: RunConfig | None = None
    ceilings: Ceilings | None = None
    gpu: bool = True
    profiler: str = "torch"  # the pass whose steps these are
    overhead: float | None = None  # traced step / plain step
    overhead_at_least: float = float("inf")  # the lower bound of its interval; infinite: unknown
    light_tried: bool = False  # whether a light pass was recorded as well
    job: JobVerdict | None = None  # which rank is late without a profiler; None: not recorded
    slow: SlowSteps | None = None
    model: DeviceModel | None = None  # the kind of the devices; None: unknown or different
    stretch: bool = False  # the recording has no steps: `steps` has one row per rank, for the whole window
    cpu: CpuUse | None = None  # what the ranks' threads did with the cores in the plain window
    epochs: set[tuple[int, int]] | None = None  # steps and ranks in which the loader began an epoch; None: unknown
    loader_cpu: tuple[float, int] | None = None  # from loader.on_cpu
    pipelines: list[Pipeline] = []
    dimension_of: dict[int, str] = {}  # by code of `calls["group_id"]`, from dimensions.names_by_group

    @property
    def step_ns(self) -> float:
        """The median step."""
        return float(np.median(self.steps["step_ns"]))

    @property
    def ranks(self) -> list[int]:
        ranks: list[int] = np.unique(self.steps["rank"]).tolist()
        return ranks

    @property
    def count(self) -> int:
        """The number of analysed steps."""
        return len(np.unique(self.steps["step"]))

    def gain(self, removed: Column) -> float:
        """Return what the job's step would save (ns, mean) if each row's segment were `removed` (ns) shorter."""
        _, index = np.unique(self.steps["step"], return_inverse=True)
        waited = np.where(self.steps["exposed_wait_ns"] == UNKNOWN, 0, self.steps["exposed_wait_ns"])
        segment = self.steps["step_ns"] - waited
        return float((_largest(segment, index) - _largest(segment - removed, index)).mean())

    def per_rank(self, values: Column) -> dict[int, float]:
        """Return the mean of a column by rank."""
        return {rank: float(values[self.steps["rank"] == rank].mean()) for rank in self.ranks}

    def mean(self, name: str) -> float:
        """Return the mean of a column of `activity` over ranks and steps; 0 if there is no activity."""
        return 0.0 if self.activity is None else float(self.activity[name].mean())

    def reductions(self) -> Table | None:
        """Return one row per matched collective that reduces gradients, by start; None if there are none.

        They are all-reduces; without any (FSDP), reduce-scatters. Those of dimensions that exchange activations do not
        count.
        """
        found = self._of_gradients("allreduce")
        return self._of_gradients("reducescatter") if found is None else found

    def of_gradients(self) -> tuple[float, float]:
        """Return the communication of the analysed steps and the exposed part of it (ns), without activations."""
        comm, exposed = (float(self.steps[name].sum()) for name in ("comm_ns", "exposed_comm_ns"))
        if self.calls is None or not self._exchanging:
            return comm, exposed
        calls = self.calls.take(np.isin(self.calls["step"], self.steps["step"]))
        calls = calls.take(~np.isin(calls["group_id"], self._exchanging))
        return float((calls["end_ns"] - calls["start_ns"]).sum()), float(np.maximum(0, calls["exposed_ns"]).sum())

    def exposed_by_kind(self) -> dict[str, float]:
        """Return for each kind of collective the transfer that nothing hides: ns, mean over ranks and steps.

        Those of a dimension that exchanges activations have a key of their own: "allreduce of tp".
        """
        if self.calls is None:
            return {}
        known = np.isin(self.calls["step"], self.steps["step"]) & (self.calls["transfer_clockfree_ns"] != UNKNOWN)
        calls = self.calls.take(known)
        hidden_not = np.minimum(np.maximum(0, calls["exposed_ns"]), np.maximum(0, calls["transfer_clockfree_ns"]))
        group = np.where(np.isin(calls["group_id"], self._exchanging), calls["group_id"], -1)
        keys, at = np.unique(np.stack([calls["kind"], group]), axis=1, return_inverse=True)
        found: dict[str, float] = {}
        for (kind, code), ns in zip(keys.T.tolist(), np.bincount(at.ravel(), hidden_not).tolist(), strict=True):
            if kind >= 0:
                key = calls.words["kind"][kind] + (OF_DIMENSION + self.dimension_of[code] if code >= 0 else "")
                found[key] = found.get(key, 0.0) + ns / len(self.steps)
        return found

    @property
    def _exchanging(self) -> list[int]:
        """Groups whose ranks exchange activations."""
        return exchanging(self.dimension_of)

    def sharded(self) -> bool:
        """Return whether FSDP launched collectives of the job."""
        return self.calls is not None and bool((self.calls["scope"] >= 0).any())

    def relieved_share(self) -> float:
        """Return the share of a rank's saved compute that the job gains.

        It is (n - 1) / n if ranks exchange their work by all-to-alls in groups of n (experts), because all of them get
        what one is relieved of. Otherwise it is 1.
        """
        exchanges = self._of_kind("alltoall")
        sizes = np.zeros(0) if exchanges is None else exchanges["group_size"]
        sizes = sizes[sizes > 1]
        return 1 - 1 / float(sizes.min()) if len(sizes) else 1.0

    def _of_gradients(self, kind: str) -> Table | None:
        calls = self._of_kind(kind)
        own = None if calls is None else calls.take(~np.isin(calls["group_id"], self._exchanging))
        return own if own is not None and len(own) else None

    def _of_kind(self, name: str) -> Table | None:
        if self.calls is None:
            return None
        kind = self.calls.where("kind", lambda word: word == name)
        chosen = kind & (self.calls["call"] >= 0) & np.isin(self.calls["step"], self.steps["step"])
        rows = np.flatnonzero(chosen & (self.calls["group_size"] != 1))
        _, first = np.unique(self.calls["call"][rows], return_index=True)
        table = self.calls.take(rows[np.sort(first)])
        return table.sort("start_ns") if len(table) else None


def _largest(values: Column, index: Column) -> Column:
    result = np.full(index.max() + 1, np.iinfo(np.int64).min)
    np.maximum.at(result, index, values)
    return result
