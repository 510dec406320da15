"""Finds which rank is late, how often, by how much, and why.

Input: the collectives' table with `lateness_ns`, the table of steps, the ranks' own intervals. Output: a table with the
lateness of every rank in every step, and a `Verdict`. Definitions: docs/metrics.md, "Lateness", "Cause".
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal

import msgspec
import numpy as np

from rankscope.analysis.align.clock import Alignment
from rankscope.analysis.core import group_by
from rankscope.analysis.core.collective_kinds import FEEDING, SYNCHRONISING
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.measure.segments import CAUSES, Explainer
from rankscope.analysis.rank.rank_data import RankData
from rankscope.conf.others import median_of_others

_EXPLAINED = 2 / 3  # share of the lateness that the excesses must explain for a cause to be named
_ONSET = 0.8  # share of the largest lateness above which a rank counts as having fallen behind
_SEVERAL = 1.5  # times the largest lateness at a call: from there on the others wait at several calls
_COLUMNS = {"compute": "compute_ns", "data": "data_stall_ns", "host": "host_gap_ns", "copy": "copy_ns"}  # of a step
VerdictName = Literal["none", "persistent", "intermittent", "rotating", "undetermined"]
UNEXPLAINED = "unexplained"
SAME_WAIT = (
    "the device of rank {} stands still for its loader, but this loader does not take that much longer than the "
    "others': if the loaders of all ranks set the pace, the fastest runs ahead, and one rank always comes last"
)
NO_COLLECTIVE = "the ranks share no collective, so none waits for another"


class StepVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that is late in a judged step. Several ranks may be late in one step."""

    step: int
    rank: int
    lateness_ns: int
    excess_ns: dict[str, int]  # by cause: this rank's time minus the median of the others
    cause: str | None = None  # by `Limits.cause_share`
    others_ns: int = 0  # the largest lateness of the ranks that are not late in this step
    same_wait_ns: int = 0  # its device stood still for the loader, but its host waited no longer than the others'
    longer_wait_ns: int = 0  # how much longer its host waited for its batch in this step; negative: less long

    @property
    def recoverable_ns(self) -> int:
        """How much earlier the rank would be with a segment like the others' (ns), at most its lateness."""
        return min(self.lateness_ns, max(0, sum(self.excess_ns.values())))


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict over the complete run. `ranks` are late together, and `rank` is the latest of them."""

    verdict: VerdictName
    rank: int | None = None
    ranks: list[int] = []
    cause: str | None = None
    cause_share: dict[str, float] = {}
    lateness_ns: int | None = None
    steps_judged: int = 0
    per_step: list[StepVerdict] = []
    reason: str | None = None  # why undetermined, or why more ranks may be late

    @property
    def steps_late(self) -> int:
        """The number of steps with a late rank."""
        return len({item.step for item in self.per_step})

    def gain_ns(self, ranks: Sequence[int]) -> float:
        """Return what mending these ranks brings (ns per judged step): the others, late or not, then set the pace."""
        steps: dict[int, list[StepVerdict]] = {}
        for item in self.per_step:
            steps.setdefault(item.step, []).append(item)
        total = 0
        for items in steps.values():
            left = [item.lateness_ns - (item.recoverable_ns if item.rank in ranks else 0) for item in items]
            total += max(item.lateness_ns for item in items) - max([*left, items[0].others_ns])
        return max(0.0, total / max(1, self.steps_judged))


def lateness(calls: Table, steps: Table) -> Table:
    """Return one row per (step, rank): lateness (ns, at least 0), and the row of `calls` with the largest one.

    `in_all`: the others wait for the rank at several calls whose result their next layer needs. Then its lateness is
    what they lose in all of them. DDP's buckets are no such calls: a rank whose device idles beside them may lack
    launches.
    """
    rows = np.flatnonzero((calls["lateness_ns"] != UNKNOWN) & (calls["step"] >= 0) & (calls["group_size"] != 1))
    order = np.lexsort([-calls["lateness_ns"][rows], calls["rank"][rows], calls["step"][rows]])
    rows = rows[order]
    step, rank = calls["step"][rows], calls["rank"][rows]
    first = np.ones(len(rows), bool)
    first[1:] = (step[1:] != step[:-1]) | (rank[1:] != rank[:-1])
    rows = rows[first]
    late = np.maximum(calls["lateness_ns"][rows], 0)
    total = _lost_by_others(steps, step[first], rank[first])
    total[~np.isin(step[first], _fed_steps(calls))] = 0
    in_all = total > _SEVERAL * late
    amount = np.where(in_all, total, late)
    return Table({"step": step[first], "rank": rank[first], "lateness_ns": amount, "row": rows, "in_all": in_all})


def _fed_steps(calls: Table) -> Column:
    """Return the steps in which most of the exposed communication is in calls whose result the next layer needs."""
    exposed = np.maximum(0, calls["exposed_ns"])
    fed = np.where(calls.where("kind", lambda word: word in FEEDING), exposed, 0)
    steps, of = np.unique(calls["step"], return_inverse=True)
    found: Column = steps[2 * np.bincount(of, fed, len(steps)) > np.bincount(of, exposed, len(steps))]
    return found


def _lost_by_others(steps: Table, step: Column, rank: Column) -> Column:
    """Return by (step, rank) how much longer a rank's step is than the others' without exposed waits (ns, at least 0).

    It is at most what the others wait more than the rank itself, and 0 if waits of the step are unknown.
    """
    found = np.zeros(len(step), np.int64)
    waits = steps["exposed_wait_ns"]
    rows = group_by.positions(steps["step"])
    for number in np.unique(step).tolist():
        at = rows.get(number, np.zeros(0, np.int64))
        if len(at) < 2 or (waits[at] == UNKNOWN).any():
            continue
        mine = np.flatnonzero(step == number)
        own, waited = steps["step_ns"][at] - waits[at], waits[at]
        excess = np.minimum(own - median_of_others(own), median_of_others(waited) - waited)
        position = {each: index for index, each in enumerate(steps["rank"][at].tolist())}
        known = [index for index in mine.tolist() if int(rank[index]) in position]
        found[known] = [max(0, int(excess[position[int(rank[index])]])) for index in known]
    return found


def open_steps(calls: Table, unpaired: Collection[str]) -> set[int]:
    """Return the steps in which a collective has no partner: who is late in them is not known of every rank.

    Groups that could not be paired at all do not count: their ranks may be judged by their other groups.
    """
    sync = calls.where("kind", lambda word: word in SYNCHRONISING) & (calls["group_size"] != 1)
    lost = sync & (calls["lateness_ns"] == UNKNOWN) & ~calls.where("group_id", lambda word: word in unpaired)
    return set(calls["step"][lost].tolist())


def least_lateness(step_ns: float, alignment: Alignment, limits: Limits) -> float:
    """Return the lateness (ns) from which a rank counts as late in a step."""
    return max(1, limits.straggler_share * step_ns, limits.straggler_errors * (alignment.bound_ns or 0) + 1)


def judge(
    late: Table,
    calls: Table,
    ranks: Sequence[RankData],
    alignment: Alignment,
    judged: Sequence[int],
    steps: Table,
    step_ns: float,
    limits: Limits,
) -> Verdict:
    """Return the verdict over the judged steps; `step_ns` is the median step."""
    found = [step for step in judged if (late["step"] == step).any()]
    if not found:
        shared = bool((calls["group_size"] != 1).any())
        return Verdict(
            verdict="undetermined",
            reason="no judged step has matched collectives of several ranks" if shared else NO_COLLECTIVE,
        )
    least = least_lateness(step_ns, alignment, limits)
    lossy = set(steps["step"][~np.asarray(steps["complete"], bool)].tolist())
    explain = Explainer(calls, ranks, lossy)
    per_step: list[StepVerdict] = []
    for step in found:
        rows = np.flatnonzero(late["step"] == step)
        per_step += _late_in_step(late.take(rows), calls, explain, steps, least, limits)
    return _over_run(per_step, len(found), limits, limits.straggler_share * step_ns)


def _late_in_step(
    late: Table, calls: Table, explain: "Explainer", steps: Table, least: float, limits: Limits
) -> list[StepVerdict]:
    """Return the ranks that are late in one step, the latest first.

    Beside the latest rank, others count from `late_share` of its lateness on. A rank that only waited for a late rank
    in another of its groups is held up, and not late itself.
    """
    late = late.take(np.argsort(-late["lateness_ns"], kind="stable"))
    amounts = late["lateness_ns"]
    counts = amounts >= max(least, limits.late_share * int(amounts[0]))
    late_ranks = set(late["rank"][counts].tolist())
    found, held_up = [], []
    for row in np.flatnonzero(counts).tolist():
        at, amount = int(late["row"][row]), int(amounts[row])
        if row and explain.held_up(at, late_ranks, steps, least):
            held_up.append(int(late["rank"][row]))
            continue
        step, rank = int(late["step"][row]), int(late["rank"][row])
        if late["in_all"][row]:
            excess, explained = _excess_of_step(steps, step, rank), amount
        else:
            onset = _onset(calls, at)
            excess, explained = explain(onset), int(calls["lateness_ns"][onset])
        found.append(step_verdict(steps, step, rank, amount, excess, limits, explained_ns=explained))
    # Those that are held up may be later than the others by themselves, at the collective of the latest rank.
    latest = (calls["call"] == calls["call"][late["row"][0]]) & np.isin(calls["rank"], held_up)
    by_themselves = int(calls["lateness_ns"][latest].max(initial=0))
    rest = max(int(amounts[~counts].max(initial=0)), by_themselves)
    return [msgspec.structs.replace(item, others_ns=rest) for item in found]


def _excess_of_step(steps: Table, step: int, rank: int) -> dict[str, int]:
    """Return by cause how much longer this part of the rank's step is than the median of the others'."""
    rows = steps.take(steps["step"] == step)
    mine = rows["rank"] == rank
    found = dict.fromkeys(CAUSES, 0)
    for cause, column in _COLUMNS.items():
        found[cause] = int(rows[column][mine].sum() - np.median(rows[column][~mine]))
    return found


def step_verdict(
    steps: Table,
    step: int,
    rank: int,
    lateness_ns: int,
    excess_ns: dict[str, int],
    limits: Limits,
    *,
    others: Collection[int] | None = None,
    explained_ns: int | None = None,
) -> StepVerdict:
    """Return a late rank of a step with its cause, given how much longer each part was than on the `others`.

    If the loaders of all ranks are slow, no host waits for another rank: the fastest runs ahead, and only the devices
    of the others seem to stand still for their loaders. So only a host that waits longer has a slower loader.
    `explained_ns` is what the cause has to explain; None: the lateness. `others` None: all other ranks.
    """
    waits = _longer_waits(steps, step, rank, others) if excess_ns["data"] > 0 else {}
    stalled = excess_ns["data"]
    if waits:  # it may count for the step before or after the one that the batch is for
        excess_ns = excess_ns | {"data": min(stalled, max(0, *waits.values()))}
    cause, _ = cause_of(excess_ns, limits.cause_share, lateness_ns if explained_ns is None else explained_ns)
    return StepVerdict(
        step=step, rank=rank, lateness_ns=lateness_ns, excess_ns=excess_ns, cause=cause,
        same_wait_ns=stalled - excess_ns["data"], longer_wait_ns=waits.get(step, 0),
    )  # fmt: skip


def _longer_waits(steps: Table, step: int, rank: int, others: Collection[int] | None) -> dict[int, int]:
    """Return by step, near this one, how much longer the rank's host waits for its batch than the others' median (ns).

    Empty if that is unknown.
    """
    near = steps.take(np.abs(steps["step"] - step) <= 1)
    found = {}
    for number in np.unique(near["step"]).tolist():
        its = near.take(near["step"] == number)
        mine = its["rank"] == rank
        compared = ~mine if others is None else np.isin(its["rank"], list(others))
        if mine.any() and compared.any():
            found[number] = int(its["data_wait_ns"][mine].sum() - np.median(its["data_wait_ns"][compared]))
    return found


def _onset(calls: Table, row: int) -> int:
    """Return the row of the first collective of that step and rank that is nearly as late as the latest one.

    Compute continues while collectives wait, so a rank that fell behind before the first bucket is still behind at
    later ones. Only the segment before the first one shows why.
    """
    mine = (calls["step"] == calls["step"][row]) & (calls["rank"] == calls["rank"][row])
    late = np.flatnonzero(mine & (calls["lateness_ns"] >= _ONSET * calls["lateness_ns"][row]))
    return int(late[np.argmin(calls["start"][late])])


def _over_run(per_step: list[StepVerdict], judged: int, limits: Limits, least_ns: float) -> Verdict:
    """Return the verdict from the late ranks of each step.

    If a loader is slower than the others by at least `least_ns` in each of these steps, what is late may have added up
    over steps, so the cause need explain only what each step adds.
    """
    if not per_step:
        return Verdict(verdict="none", steps_judged=judged)
    steps: dict[int, set[int]] = {}
    amount: Counter[int] = Counter()
    for item in per_step:
        steps.setdefault(item.rank, set()).add(item.step)
        amount[item.rank] += item.lateness_ns
    rank = max(steps, key=lambda number: (len(steps[number]), amount[number], -number))
    named = [number for number, own in steps.items() if len(own & steps[rank]) * 2 > len(steps[rank])]
    verdict: VerdictName
    if len(steps[rank]) * 2 > judged:
        verdict = "persistent"
        named = [number for number in steps if len(steps[number]) * 2 > judged]
    elif len({item.step for item in per_step}) * 2 > judged:
        verdict, named = "rotating", []
    else:
        verdict = "intermittent"
    counted = [item for item in per_step if not named or item.rank in named]
    excess = {cause: sum(item.excess_ns[cause] for item in counted) for cause in CAUSES}
    late_ns = sum(item.lateness_ns for item in counted)
    cause, shares = cause_of(excess, limits.cause_share, late_ns)
    if cause == UNEXPLAINED and waits_no_longer(counted):
        if not all(item.longer_wait_ns >= least_ns for item in counted):
            return Verdict(verdict="undetermined", steps_judged=judged, reason=SAME_WAIT.format(rank))
        cause, shares = cause_of(excess, limits.cause_share, min(late_ns, sum(excess.values())))
    return Verdict(
        verdict=verdict,
        rank=rank if named else None,
        ranks=sorted(named),
        cause=cause,
        cause_share=shares,
        lateness_ns=int(np.median([item.lateness_ns for item in counted])),
        steps_judged=judged,
        per_step=per_step,
    )


def waits_no_longer(late: Collection[StepVerdict]) -> bool:
    """Return whether loaders would explain the lateness if those of these ranks were slower than the others'."""
    explained = sum(sum(item.excess_ns.values()) + item.same_wait_ns for item in late)
    return explained >= _EXPLAINED * sum(item.lateness_ns for item in late)


def cause_of(excess_ns: dict[str, int], needed: float, lateness_ns: int) -> tuple[str, dict[str, float]]:
    """Return the cause that covers at least `needed` of the excess (otherwise `mixed`), and the share of each cause.

    If all excesses together explain less than two thirds of the lateness, it is `unexplained`.
    """
    total = sum(excess_ns.values())
    if total <= 0 or total < _EXPLAINED * lateness_ns:
        return UNEXPLAINED, {}
    shares = {cause: round(amount / total, 4) for cause, amount in excess_ns.items()}
    largest = max(excess_ns, key=lambda cause: excess_ns[cause])
    return (largest if excess_ns[largest] >= needed * total else "mixed"), shares
