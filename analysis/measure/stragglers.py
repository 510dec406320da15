"""Finds which rank is late, how often, by how much, and why.

Input: the collectives' table with `lateness_ns`, the table of steps, the ranks' own intervals. Output: a table with the
lateness of every rank in every step, and a `Verdict`. Definitions: docs/metrics.md, "Lateness", "Cause".
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from rankscope.analysis.align.clock import Alignment
from rankscope.analysis.core import group_by
from rankscope.analysis.core.collective_kinds import SYNCHRONISING
from rankscope.analysis.core.intervals import either, measure, union
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.rank.rank_data import RankData

_ONSET = 0.8  # share of the largest lateness above which a rank counts as having fallen behind
VerdictName = Literal["none", "persistent", "intermittent", "rotating", "undetermined"]
CAUSES = ("compute", "data", "host", "copy", "earlier_comm")


class StepVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The latest rank of one judged step, if it is late enough to count."""

    step: int
    rank: int
    lateness_ns: int
    excess_ns: dict[str, int]  # by cause: this rank's time minus the median of the others
    cause: str | None = None  # by `Limits.cause_share`

    @property
    def recoverable_ns(self) -> int:
        """How much shorter the step would be with a segment like the others' (ns): the sum of the excesses."""
        return max(0, sum(self.excess_ns.values()))


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict over the complete run."""

    verdict: VerdictName
    rank: int | None = None
    cause: str | None = None
    cause_share: dict[str, float] = {}
    lateness_ns: int | None = None
    steps_judged: int = 0
    per_step: list[StepVerdict] = []
    reason: str | None = None  # why undetermined


def lateness(calls: Table) -> Table:
    """Return one row per (step, rank): the largest lateness (ns, at least 0) and the row of `calls` it comes from."""
    rows = np.flatnonzero((calls["lateness_ns"] != UNKNOWN) & (calls["step"] >= 0) & (calls["group_size"] != 1))
    order = np.lexsort([-calls["lateness_ns"][rows], calls["rank"][rows], calls["step"][rows]])
    rows = rows[order]
    step, rank = calls["step"][rows], calls["rank"][rows]
    first = np.ones(len(rows), bool)
    first[1:] = (step[1:] != step[:-1]) | (rank[1:] != rank[:-1])
    rows = rows[first]
    late = np.maximum(calls["lateness_ns"][rows], 0)
    return Table({"step": step[first], "rank": rank[first], "lateness_ns": late, "row": rows})


def judge(
    late: Table,
    calls: Table,
    ranks: Sequence[RankData],
    alignment: Alignment,
    judged: Sequence[int],
    step_ns: float,
    limits: Limits,
) -> Verdict:
    """Return the verdict over the judged steps; `step_ns` is the median step."""
    found = [step for step in judged if (late["step"] == step).any()]
    if not found:
        return Verdict(verdict="undetermined", reason="no judged step has matched collectives of several ranks")
    bound = alignment.bound_ns or 0
    explain = _Explainer(calls, ranks)
    per_step = []
    for step in found:
        rows = np.flatnonzero(late["step"] == step)
        worst = rows[np.argmax(late["lateness_ns"][rows])]
        amount = int(late["lateness_ns"][worst])
        if amount > 0 and amount >= limits.straggler_share * step_ns and amount > limits.straggler_errors * bound:
            rank, row = int(late["rank"][worst]), _onset(calls, int(late["row"][worst]))
            excess = explain(row)
            cause, _ = cause_of(excess, limits.cause_share)
            per_step.append(StepVerdict(step=step, rank=rank, lateness_ns=amount, excess_ns=excess, cause=cause))
    return _over_run(per_step, len(found), limits)


def _onset(calls: Table, row: int) -> int:
    """Return the row of the first collective of that step and rank that is nearly as late as the latest one.

    Compute continues while collectives wait, so a rank that fell behind before the first bucket is still behind at
    later ones. Only the segment before the first one shows why.
    """
    mine = (calls["step"] == calls["step"][row]) & (calls["rank"] == calls["rank"][row])
    late = np.flatnonzero(mine & (calls["lateness_ns"] >= _ONSET * calls["lateness_ns"][row]))
    return int(late[np.argmin(calls["start"][late])])


def _over_run(per_step: list[StepVerdict], judged: int, limits: Limits) -> Verdict:
    if not per_step:
        return Verdict(verdict="none", steps_judged=judged)
    rank, times = Counter(item.rank for item in per_step).most_common(1)[0]
    verdict: VerdictName
    if times * 2 > judged:
        verdict = "persistent"
    elif len(per_step) * 2 > judged:
        verdict = "rotating"
    else:
        verdict = "intermittent"
    named = None if verdict == "rotating" else rank
    counted = [item for item in per_step if named in (None, item.rank)]
    excess = {cause: sum(item.excess_ns[cause] for item in counted) for cause in CAUSES}
    cause, shares = cause_of(excess, limits.cause_share)
    return Verdict(
        verdict=verdict,
        rank=named,
        cause=cause,
        cause_share=shares,
        lateness_ns=int(np.median([item.lateness_ns for item in counted])),
        steps_judged=judged,
        per_step=per_step,
    )


def cause_of(excess_ns: dict[str, int], needed: float) -> tuple[str | None, dict[str, float]]:
    """Return the cause that covers at least `needed` of the excess (otherwise `mixed`), and the share of each cause."""
    total = sum(excess_ns.values())
    if total <= 0:
        return None, {}
    shares = {cause: round(amount / total, 4) for cause, amount in excess_ns.items()}
    largest = max(excess_ns, key=lambda cause: excess_ns[cause])
    return (largest if excess_ns[largest] >= needed * total else "mixed"), shares


class _Explainer:
    """Breaks the segment before a late collective down into causes, on every rank that takes part in it."""

    def __init__(self, calls: Table, ranks: Sequence[RankData]) -> None:
        self._calls = calls
        self._ranks = {data.rank: data for data in ranks}
        sync = calls.where("kind", lambda word: word in SYNCHRONISING)
        self._usable = sync & (calls["ready_ns"] != UNKNOWN) & (calls["group_size"] != 1)
        self._of_rank = group_by.positions(calls["rank"])
        self._layers: dict[int, list[Column]] = {}

    def _of_call(self, call: int) -> Column:
        """Return the rows of a call (the table is sorted by call)."""
        low, high = np.searchsorted(self._calls["call"], [call, call + 1])
        return np.arange(low, high)

    def __call__(self, row: int) -> dict[str, int]:
        """Return by cause how much longer this rank's segment is than the median of the others'."""
        calls = self._calls
        rows = self._of_call(int(calls["call"][row]))
        previous = self._previous(row, calls["rank"][rows])
        ends: dict[int, int] = {}
        if previous is not None:
            before = self._of_call(previous)
            ends = dict(zip(calls["rank"][before].tolist(), calls["end"][before].tolist(), strict=True))
        parts = {int(calls["rank"][other]): self._segment(int(other), ends) for other in rows}
        own = parts.pop(int(calls["rank"][row]))
        return {
            cause: int(own[index] - np.median([part[index] for part in parts.values()]))
            for index, cause in enumerate(CAUSES)
        }

    def _previous(self, row: int, members: Column) -> int | None:
        """Return the last synchronising collective of all members that ended before this one began; None if none."""
        calls = self._calls
        mine = self._of_rank[int(calls["rank"][row])]
        mine = mine[self._usable[mine]]
        mine = mine[calls["end"][mine] <= calls["start"][row]]
        for candidate in mine[np.argsort(-calls["end"][mine])].tolist():
            call = calls["call"][candidate]
            if np.isin(members, calls["rank"][self._of_call(int(call))]).all():
                return int(call)
        return None

    def _segment(self, row: int, ends: dict[int, int]) -> list[int]:
        """Return the lengths (ns) of compute, data stall, host gap, copy and earlier communication before a row."""
        calls, rank = self._calls, int(self._calls["rank"][row])
        data = self._ranks[rank]
        end = calls["start"][row : row + 1]
        if ends:  # the segment begins where the previous collective ended
            start = np.array([ends[rank]])
        else:
            start = data.steps["start"][data.steps["step"] == calls["step"][row]]
        start = np.minimum(start, end)
        compute, comm, copy, stall = (int(measure(layer, start, end)[0]) for layer in self._layers_of(rank))
        host = int(end[0] - start[0]) - stall
        return [compute, stall - copy, host, copy - comm, comm - compute]

    def _layers_of(self, rank: int) -> list[Column]:
        """Return the cumulative unions: compute, with communication, with copies, with data waits."""
        if rank not in self._layers:
            data, calls = self._ranks[rank], self._calls
            mine = self._of_rank[rank]
            layers = [data.compute]
            for layer in (union(calls["start"][mine], calls["end"][mine]), data.copies, data.data_wait):
                layers.append(either(layers[-1], layer))
            self._layers[rank] = layers
        return self._layers[rank]
