"""Pairs the collectives of all ranks, and puts the ranks on one clock, if the two agree.

Input: `RankData`. Output: a `Pairing`: one table with a row per record and the number of its `call` (-1: no partner),
the clock that follows from the ends of these calls, and the groups whose calls cannot be paired.

A pairing must agree with itself: the records of a call have the same kind, size, type and group size, they are launched
in the same step, and on the clock that follows from their ends no rank starts after another has ended. Otherwise the
next hypothesis of `match` is tried. If none holds, or if two hold that contradict each other, the group stays unpaired.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from rankscope.analysis.align import point_to_point
from rankscope.analysis.align.clock import Alignment, align, on_common_clock
from rankscope.analysis.align.groups import ASSUMED, group_members, group_name, stack
from rankscope.analysis.align.match import HYPOTHESES, Hypothesis, numbered, whole_calls
from rankscope.analysis.core import group_by
from rankscope.analysis.core.collective_kinds import EVEN, SYNCHRONISING
from rankscope.analysis.core.notices import Notice
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.rank.rank_data import NO_STEP, RankData

_CONFLICTS = 0.05  # share of a rank's calls that may contradict a hypothesis: damaged records
_OTHER_STEPS = 0.1  # share of a rank's calls that may be of another step: records without a launch
_PAIRED = 0.5  # share of a rank's calls that must have partners on all ranks
_VIOLATIONS = 0.2  # share of calls that may break causality, and whose ends may be far apart
_IF_ASSUMED = "no record names its process group, and if all ranks were one group, "
_VIOLATIONS_IF_ASSUMED = 0.04  # the same in a group that no record names
_NOISE_NS = {"device": 100_000, "cpu": 3_000_000}  # by which a call may break causality: errors of stamps and ends
_LOOSE = 0.5  # spread of the ends of a call, as a share of its shortest record, from which they are no common end
_LOOSE_NS = 500_000
_FEW_GROUPS = 8  # that contradict the others, which are looked at one by one
_MOST_GROUPS = 4096
TOO_MANY = "(further groups)"  # stands for them among the unpaired ones
_CLEARLY = 5  # times by which the clocks of one hypothesis must differ less than those of another


class Pairing(msgspec.Struct, kw_only=True):
    """The paired records on one clock. `unpaired` has the reason by group."""

    calls: Table
    alignment: Alignment
    unpaired: dict[str, str] = {}
    notices: list[Notice] = []


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """What speaks against a hypothesis."""

    hypothesis: Hypothesis
    call: Column
    conflicts: float  # share of a rank's calls in which kind, size, type or group size differ
    other_steps: float  # share of a rank's calls that are of another step on other ranks
    paired: float  # share of a rank's calls with partners on all ranks; for these three, the worst rank
    breaks_causality: bool
    loose_ends: bool
    offset_ns: int  # the largest difference of clocks that follows from it

    @property
    def against(self) -> str | None:
        """Why it cannot be right; None if it can."""
        if self.conflicts > _CONFLICTS:
            return "kinds or sizes of their calls differ"
        if self.paired < _PAIRED:
            return "most of their calls have no partner on some rank"
        if self.other_steps > _OTHER_STEPS and self.hypothesis != "seq":
            return "they would be of different steps"
        if self.breaks_causality:
            return "ranks would start calls after others have ended them"
        return "their calls do not end together" if self.loose_ends else None


def pair(ranks: Sequence[RankData]) -> Pairing:
    """Return the records of all ranks, sorted by call and rank, with the clock of all ranks."""
    records = stack(ranks)
    call = np.full(len(records), -1)
    unpaired: dict[str, str] = {}
    notices: list[Notice] = []
    following = 0
    groups = group_by.positions(records["group_id"])
    if len(groups) > _MOST_GROUPS:
        text = f"{len(groups)} groups: only the {_MOST_GROUPS} with the most collectives are paired"
        notices.append(Notice(kind="groups_unknown", message=text))
        unpaired[TOO_MANY] = "there are too many groups"
        groups = dict(sorted(groups.items(), key=lambda item: -len(item[1]))[:_MOST_GROUPS])
    for code, rows in groups.items():
        name = records.words["group_id"][code]
        found = _choose(records.take(rows), ranks)
        if isinstance(found, str):
            assumed = group_name(name) == ASSUMED
            unpaired[name] = f"{_IF_ASSUMED}{found}" if assumed else found
            continue
        if found.hypothesis != HYPOTHESES[0] and records["seq"][rows][0] != UNKNOWN:
            notices.append(_not_by_seq(name, found.hypothesis))
        own = found.call >= 0
        call[rows[own]] = found.call[own] + following
        following += int(found.call.max(initial=-1)) + 1
    messages = point_to_point.pair(records)
    call = np.where(messages >= 0, messages + following, call)
    ordinal = np.where(call >= 0, call - _first_of_group(records["group_id"], call), -1)
    call = np.where(whole_calls(records, call), call, -1)
    calls, alignment = _on_one_clock(records.with_columns(call=call, ordinal=ordinal), ranks, unpaired)
    notices += [_unpaired(name, why) for name, why in unpaired.items() if name != TOO_MANY]
    return Pairing(calls=calls, alignment=alignment, unpaired=unpaired, notices=notices)


def _first_of_group(group: Column, call: Column) -> Column:
    """Return for each record the lowest number of a call in its group."""
    lowest = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
    for code, rows in group_by.positions(group).items():
        known = call[rows][call[rows] >= 0]
        lowest[code] = known.min() if len(known) else 0
    return lowest[group]


def _on_one_clock(records: Table, ranks: Sequence[RankData], unpaired: dict[str, str]) -> tuple[Table, Alignment]:
    """Align the ranks. A group that breaks causality on the clock of all groups is added to `unpaired`.

    Without the worst group the others may agree, so one at a time is taken away; half of them if there are many.
    """
    while True:
        calls = records.sort("call", "rank")
        alignment = align(calls, ranks)
        worst = _worst_groups(calls, alignment, ranks)
        if not worst:
            return calls, alignment
        taken = worst[: max(1, len(worst) // 2 if len(worst) > _FEW_GROUPS else 1)]
        for code in taken:
            unpaired[records.words["group_id"][code]] = "they contradict the clock that follows from the other groups"
        records = records.with_columns(call=np.where(np.isin(records["group_id"], taken), -1, records["call"]))


def _worst_groups(calls: Table, alignment: Alignment, ranks: Sequence[RankData]) -> list[int]:
    """Return the groups in which too large a share of calls breaks causality, the largest share first."""
    paired = calls.take(calls["call"] >= 0)
    shares = {
        code: (*_violations(paired.take(rows), alignment, ranks), _allowed(paired.take(rows[:1])))
        for code, rows in group_by.positions(paired["group_id"]).items()
    }
    bad = {code: share for code, (share, count, allowed) in shares.items() if _too_many(share, count, allowed)}
    return sorted(bad, key=lambda code: -bad[code])


# --- hypotheses ----------------------------------------------------------------------------------------------


def _choose(part: Table, ranks: Sequence[RankData]) -> Fit | str:
    """Return the hypothesis that holds for the records of one group; otherwise the reason why none does."""
    present = set(np.unique(part["rank"]).tolist())
    members = [data for data in ranks if data.rank in present]
    tried: list[Fit] = []
    for hypothesis in HYPOTHESES:
        call = numbered(part, hypothesis)
        if tried and ((call < 0).all() or any(np.array_equal(call, fit.call) for fit in tried)):
            continue
        fit = _fit(part, call, hypothesis, members)
        if fit.against is None and fit.other_steps <= _OTHER_STEPS and (call >= 0).any():
            return _unless_contradicted(fit, tried)
        tried.append(fit)
    sound = [fit for fit in tried if fit.against is None]
    if not sound:
        return tried[0].against or ""
    return _unless_contradicted(sound[0], sound[1:])


def _unless_contradicted(fit: Fit, others: Sequence[Fit]) -> Fit | str:
    """Return the hypothesis whose clocks differ least, or why the choice is open, if others could be right as well."""
    rivals = [fit, *(other for other in others if other.against is None and (other.call >= 0).any())]
    rivals.sort(key=lambda rival: rival.offset_ns)
    if len(rivals) > 1 and rivals[1].offset_ns < _CLEARLY * max(rivals[0].offset_ns, _NOISE_NS["device"]):
        return "their numbers (Seq) and their steps contradict each other"
    return rivals[0]


def _fit(part: Table, call: Column, hypothesis: Hypothesis, members: Sequence[RankData]) -> Fit:
    rows = np.flatnonzero(call >= 0)
    paired = part.with_columns(call=call).take(rows).sort("call", "rank")
    conflicts, steps, complete = _differences(paired, len(members))
    alignment = align(paired, members)
    share, count = _violations(paired, alignment, members)
    allowed = _allowed(part)
    return Fit(
        hypothesis=hypothesis,
        call=call,
        conflicts=conflicts,
        other_steps=steps,
        paired=complete,
        breaks_causality=_too_many(share, count, allowed),
        loose_ends=_loose_ends(paired, alignment, members) > allowed,
        offset_ns=max((abs(offset) for offset in alignment.offset_ns.values()), default=0),
    )


def _differences(paired: Table, ranks: int) -> tuple[float, float, float]:
    """Return of the worst rank the shares of calls that differ in what must agree, in the step, and that are complete.

    The rows are sorted by call. A call on few ranks does not hide one that contradicts on all.
    """
    if not len(paired):
        return 0.0, 0.0, 1.0
    size = group_by.sizes(paired["call"])
    even = paired.where("kind", lambda word: word in EVEN)

    def differs(column: Column, unknown: int) -> Column:
        highest = group_by.highest(column, paired["call"])  # unknown values are the lowest
        return np.asarray((column != highest) & (column != unknown))

    wrong = differs(paired["kind"], -1) | differs(paired["dtype"], -1) | differs(paired["group_size"], UNKNOWN)
    wrong |= even & (differs(paired["in_nelems"], UNKNOWN) | differs(paired["bytes"], UNKNOWN))
    moved, complete, shared = differs(paired["step"], NO_STEP), size == ranks, size > 1
    worst = [0.0, 0.0, 1.0]
    for rows in group_by.positions(paired["rank"]).values():
        with_others = rows[shared[rows]]
        if len(with_others):
            worst[0] = max(worst[0], float(wrong[with_others].mean()))
            worst[1] = max(worst[1], float(moved[with_others].mean()))
        worst[2] = min(worst[2], float(complete[rows].mean()))
    return worst[0], worst[1], worst[2]


def _violations(paired: Table, alignment: Alignment, members: Sequence[RankData]) -> tuple[float, int]:
    """Return the share and the number of synchronising calls that a rank starts after another has ended them."""
    paired = paired.take(paired.where("kind", lambda word: word in SYNCHRONISING))
    if not len(paired):
        return 0.0, 0
    start, end = on_common_clock(alignment, paired)
    late = group_by.highest(start, paired["call"]) - group_by.lowest(end, paired["call"])
    broken = late[group_by.starts_of(paired["call"])] > _noise(members)
    return float(broken.mean()), int(broken.sum())


def _too_many(share: float, count: int, allowed: float) -> bool:
    return (share > allowed and count > 1) or share > _LOOSE


def _allowed(part: Table) -> float:
    """Return the share of calls that may contradict the clock. It is small if the group is only assumed."""
    named = group_name(part.words["group_id"][part["group_id"][0]]) != ASSUMED
    return _VIOLATIONS if named else _VIOLATIONS_IF_ASSUMED


def _noise(members: Sequence[RankData]) -> int:
    return max(_NOISE_NS[data.mode] for data in members)


def _loose_ends(paired: Table, alignment: Alignment, members: Sequence[RankData]) -> float:
    """Return the share of calls whose ends are far apart; 0 for gloo on a CPU, whose ends always are."""
    paired = paired.take(paired.where("kind", lambda word: word in SYNCHRONISING))
    if len(paired) < 2 or any(data.mode == "cpu" for data in members):
        return 0.0
    start, end = on_common_clock(alignment, paired)
    first = group_by.starts_of(paired["call"])
    spread = (group_by.highest(end, paired["call"]) - group_by.lowest(end, paired["call"]))[first]
    shortest = group_by.lowest(end - start, paired["call"])[first]
    return float((spread > np.maximum(_LOOSE_NS, _LOOSE * shortest)).mean())


# --- notices -------------------------------------------------------------------------------------------------


def _named(group_id: str) -> str:
    name, members = group_name(group_id), group_members(group_id)
    return "whose group is unknown" if name == "?" or members is None else f"of group {name}"


def _not_by_seq(group_id: str, hypothesis: Hypothesis) -> Notice:
    way = "by order" if hypothesis == "order" else "by shifted order"
    text = f"collectives {_named(group_id)}: Seq does not fit their sizes, steps or times: matched {way}"
    return Notice(kind="seq_ignored", message=text, details={"group": group_name(group_id)})


def _unpaired(group_id: str, why: str) -> Notice:
    text = f"collectives {_named(group_id)} cannot be paired: {why}; waits, transfers and late ranks are unknown"
    return Notice(kind="groups_unknown", message=text, details={"group": group_name(group_id), "reason": why})
