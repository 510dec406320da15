"""Finds ranks that are late together although they are more than half of all.

Lateness is measured against the median of the other ranks, and the median of a late majority is late itself. So here
the ranks that come first are the measure. Input: the collectives' table and the explainer of segments. Output: a
`Verdict` that names the majority, or says why the trace cannot tell; None if no majority is late.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from rankscope.analysis.core.collective_kinds import SYNCHRONISING
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.analysis.measure.segments import CAUSES, Explainer
from rankscope.analysis.measure.stragglers import (
    SAME_WAIT,
    UNEXPLAINED,
    StepVerdict,
    Verdict,
    cause_of,
    step_verdict,
    waits_no_longer,
)

_APART = 0.5  # of the spread of starts: the gap between those that come first and the others
_ONSET = 0.8  # of the largest gap: the collective from which on the ranks are apart
_WAITING = ("data", "host", "copy")  # more of these is a fault; more compute may be more to do


class _Split(msgspec.Struct, frozen=True, kw_only=True):
    """A collective before which a minority of its ranks comes first."""

    row: int  # of the latest rank
    early: tuple[int, ...]
    late: tuple[int, ...]
    gap_ns: int


def late_majority(
    calls: Table, explain: Explainer, steps: Table, judged: Sequence[int], least_ns: float, limits: Limits
) -> Verdict | None:
    """Return the verdict if in most judged steps the same majority of a group comes at least `least_ns` later."""
    usable = calls.where("kind", lambda word: word in SYNCHRONISING) & (calls["ready_ns"] != UNKNOWN)
    usable &= calls["group_size"] != 1  # unknown without metadata
    found = {step: _of_step(calls, np.flatnonzero(usable & (calls["step"] == step)), least_ns) for step in judged}
    usual = Counter(_early(splits) for splits in found.values() if splits).most_common(1)
    if not usual or usual[0][1] * 2 <= len(judged):
        return None
    early = usual[0][0]
    found = {step: splits for step, splits in found.items() if splits and _early(splits) == early}
    late = sorted({rank for splits in found.values() for split in splits for rank in split.late})
    if set(late) & set(early):
        return None
    per_step = [
        item
        for step, splits in found.items()
        for split in splits
        for item in _items(calls, explain, steps, step, split, limits)
    ]
    excess = {cause: sum(item.excess_ns[cause] for item in per_step) for cause in CAUSES}
    cause, shares = cause_of(excess, limits.cause_share, sum(item.lateness_ns for item in per_step))
    amount = int(np.median([split.gap_ns for splits in found.values() for split in splits]))
    latest = max(per_step, key=lambda item: item.lateness_ns).rank
    if cause == UNEXPLAINED and waits_no_longer(per_step):
        return Verdict(verdict="undetermined", steps_judged=len(judged), reason=SAME_WAIT.format(latest))
    if cause not in _WAITING:
        return Verdict(verdict="undetermined", steps_judged=len(judged), reason=_other_work(early, late, amount))
    return Verdict(
        verdict="persistent", rank=latest, ranks=late, cause=cause, cause_share=shares, lateness_ns=amount,
        steps_judged=len(judged), per_step=per_step,
    )  # fmt: skip


def _other_work(early: Sequence[int], late: Sequence[int], amount_ns: int) -> str:
    """Say why nobody is named although a majority comes later."""
    one = len(early) == 1
    who = f"rank{'' if one else 's'} {', '.join(map(str, early))}"
    return (
        f"{who} come{'s' if one else ''} {amount_ns * 1e-6:.2f} ms before the {len(late)} others: either those are "
        f"late, or {who} {'has' if one else 'have'} less to do, which the trace does not show"
    )


def _early(splits: Sequence[_Split]) -> tuple[int, ...]:
    return tuple(sorted({rank for split in splits for rank in split.early}))


def _of_step(calls: Table, rows: np.ndarray, least_ns: float) -> list[_Split]:
    """Return for each group the split at the first collective at which its ranks are nearly as far apart as ever."""
    chosen = []
    for group in np.unique(calls["group_id"][rows]).tolist():
        own = rows[calls["group_id"][rows] == group]
        splits = [_of_call(calls, own[calls["call"][own] == call], least_ns) for call in np.unique(calls["call"][own])]
        known = [split for split in splits if split is not None]
        if known:
            widest = max(split.gap_ns for split in known)
            onset = [split for split in known if split.gap_ns >= _ONSET * widest]
            chosen.append(min(onset, key=lambda split: int(calls["start"][split.row])))
    return chosen


def _of_call(calls: Table, rows: np.ndarray, least_ns: float) -> _Split | None:
    rows = rows[np.argsort(calls["start_ns"][rows], kind="stable")]
    start = calls["start_ns"][rows]
    gaps = np.diff(start)
    first = int(np.argmax(gaps)) + 1 if len(gaps) else 0  # so many ranks come first
    apart = len(gaps) and gaps[first - 1] >= max(least_ns, _APART * (start[-1] - start[0]))
    if not apart or first * 2 >= len(rows):
        return None
    ranks = calls["rank"][rows].tolist()
    early, late = tuple(sorted(ranks[:first])), tuple(sorted(ranks[first:]))
    return _Split(row=int(rows[-1]), early=early, late=late, gap_ns=int(gaps[first - 1]))


def _items(
    calls: Table, explain: Explainer, steps: Table, step: int, split: _Split, limits: Limits
) -> list[StepVerdict]:
    """Return a `StepVerdict` for each late rank, against the ranks that come first."""
    parts = explain.parts(split.row)
    rows = np.flatnonzero(calls["call"] == calls["call"][split.row])
    start = dict(zip(calls["rank"][rows].tolist(), calls["start_ns"][rows].tolist(), strict=True))
    first = float(np.median([start[rank] for rank in split.early]))
    items = []
    for rank in split.late:
        amount = int(start[rank] - first)
        excess = dict.fromkeys(CAUSES, 0)
        if parts is not None:
            for index, cause in enumerate(CAUSES):
                usual = np.median([parts[other][index] for other in split.early])
                excess[cause] = int(parts[rank][index] - usual)
        items.append(step_verdict(steps, step, rank, amount, excess, limits, others=split.early))
    return items
