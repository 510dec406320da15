"""Selects the steps to analyse, and among them those in which stragglers can be judged. Reports what is left out.

Input: the table of steps of all ranks. Output: step numbers, and notices.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from rankscope.analysis.core.notices import Notice
from rankscope.analysis.core.table import Table
from rankscope.analysis.rank.rank_data import RankData
from rankscope.analysis.rank.steps import COVERED

WINDOW_START = "window_start"  # kind of the notice about steps that are left out because a window opens there
_HELD_UP = 1.5  # times the median of the later steps
_AFTER_LOST = 1.5  # times the median of the rank's other complete steps
_WARM_UP = 2.0  # times the median of the later steps


def choose(
    ranks: Sequence[RankData], steps: Table, bounds: tuple[int | None, int | None] | None = None
) -> tuple[list[int], list[Notice]]:
    """Return the steps that are complete on every rank and not warm-up, and notices about the others.

    A step with which a window opens is left out if there is another one, within `bounds` if steps were asked for.
    """
    notices: list[Notice] = []
    numbers = {data.rank: set(data.steps["step"].tolist()) for data in ranks}
    stepped = {rank: found for rank, found in numbers.items() if found}
    if not stepped:
        return [], notices
    common = set.intersection(*stepped.values())
    for rank, found in stepped.items():
        alone = sorted(found - common)
        if alone:
            text = f"rank {rank}: steps {_list(alone)} are not on every rank and were left out"
            notices.append(Notice(kind="unmatched_steps", rank=rank, message=text, details={"steps": alone}))
    partial = _partial(ranks, steps)
    for step in sorted(set(partial) & common):
        reasons = list(dict.fromkeys(partial[step].values()))
        text = f"step {step}: {reasons[0]} on rank {_list(list(partial[step]))}; the step was left out"
        details = {"steps": [step], "ranks": list(partial[step]), "reasons": reasons}
        notices.append(Notice(kind="partial_step", message=text, details=details))
    kept = sorted(common - set(partial))
    opening = _opening(ranks, steps, kept if bounds is None else only(kept, bounds)[0])
    if opening:
        why = "before it all work was finished, so that the profiler could start"
        text = f"step {_list(opening)}: first of the window, {why}; left out"
        notices.append(Notice(kind=WINDOW_START, level="info", message=text, details={"steps": opening}))
        kept = [step for step in kept if step not in opening]
    late = _late_start(ranks, steps, kept)
    if late is not None:
        text = f"step {late}: first of the capture, its collectives wait for profilers that started late; left out"
        notices.append(Notice(kind="capture_start", level="info", message=text, details={"steps": [late]}))
        kept = kept[1:]
    warm_up = _warm_up(ranks, steps, kept)
    if warm_up:
        text = f"step {_list(warm_up)}: warm-up (different collectives from later steps, and slower); left out"
        notices.append(Notice(kind="warmup_steps", level="info", message=text, details={"steps": warm_up}))
    return [step for step in kept if step not in warm_up], notices


def _after_lost(data: RankData) -> list[int]:
    """Return the complete steps that seem to last from before a gap in the records: their begin is not known.

    A step begins on the device where the work of the step before ended. If that is lost, it is too long.
    """
    complete = np.asarray(data.steps["complete"], bool)
    took = data.steps["end"] - data.steps["start"]
    after = complete & np.concatenate([[False], ~complete[:-1]])
    if not after.any() or not (complete & ~after).any():
        return []
    too_long = after & (took > _AFTER_LOST * np.median(took[complete & ~after]))
    found: list[int] = data.steps["step"][too_long].tolist()
    return found


def _partial(ranks: Sequence[RankData], steps: Table) -> dict[int, dict[int, str]]:
    """Return the steps that do not count, with the ranks and reasons."""
    found: dict[int, dict[int, str]] = {}
    for data in ranks:
        for row in np.flatnonzero(~np.asarray(data.steps["complete"], bool)).tolist():
            found.setdefault(int(data.steps["step"][row]), {})[data.rank] = _why_incomplete(data.steps, row)
        for step in _after_lost(data):
            found.setdefault(step, {})[data.rank] = "it begins where records of the step before are lost"
    for rank, step in _without_compute(ranks, steps):
        found.setdefault(step, {})[rank] = "nothing was computed, although other ranks did,"
    return found


def _why_incomplete(steps: Table, row: int) -> str:
    launches, covered = int(steps["launches"][row]), int(steps["covered"][row])
    if covered < COVERED * launches:
        return f"records are missing (the profiler lost {launches - covered} of {launches} kernels)"
    return "no record of work of its own" if steps["records"][row] else "no record"


def _without_compute(ranks: Sequence[RankData], steps: Table) -> list[tuple[int, int]]:
    """Return (rank, step) pairs in which a rank computed nothing although others did.

    The rank had run out of data and only took part in the others' collectives (DDP's join).
    """
    idle = steps.take((steps["compute_ns"] == 0) & (steps["comm_ns"] > 0))
    busy = set(steps["step"][steps["compute_ns"] > 0].tolist())
    pairs = zip(idle["rank"].tolist(), idle["step"].tolist(), strict=True)
    return [(rank, step) for rank, step in pairs if step in busy]


def only(chosen: Sequence[int], bounds: tuple[int | None, int | None]) -> tuple[list[int], list[Notice]]:
    """Return the steps within `bounds`, both inclusive, and a notice about those left out on request."""
    low, high = bounds
    kept = [step for step in chosen if (low is None or step >= low) and (high is None or step <= high)]
    rest = sorted(set(chosen) - set(kept))
    if not rest:
        return kept, []
    text = f"steps {_list(rest)} were left out on request"
    return kept, [Notice(kind="steps_left_out", level="info", message=text, details={"steps": rest})]


def with_lost_records(
    ranks: Sequence[RankData], steps: Table, bounds: tuple[int | None, int | None] | None
) -> list[int]:
    """Return the steps of all ranks that are incomplete because records are lost: their collectives still count."""
    count, found = len([data for data in ranks if len(data.steps)]), []
    lossy = steps["covered"] < COVERED * steps["launches"]
    for step in np.unique(steps["step"][lossy]).tolist():
        rows = steps["step"] == step
        if rows.sum() == count and (steps["records"][rows] > 0).all():
            found.append(step)
    return found if bounds is None else only(found, bounds)[0]


def judged(analysed: list[int], steps: Table, together_ns: float) -> list[int]:
    """Return the steps in which lateness is meaningful.

    The first step of a window is not judged, because its first collective shows when each rank's profiler started. If
    the window has only one step, it is judged if every rank began it within `together_ns`.
    """
    rest = _later_in_window(analysed, steps)
    if rest or not analysed:
        return rest
    begin = steps["host_start_ns"][steps["step"] == analysed[0]]
    return analysed[:1] if begin.max() - begin.min() < together_ns else []


def _opening(ranks: Sequence[RankData], steps: Table, kept: list[int]) -> list[int]:
    """Return the first step of each window that rankscope itself recorded; none if there are no other steps.

    The harness lets the device finish before it starts torch.profiler, so a host that leads begins anew. Observed
    on H200s: a step of 127 ms instead of 95, with 31 ms of data stall that no other step has.
    """
    if not all(data.source == "kineto" and data.host_id is not None for data in ranks):
        return []
    later = _later_in_window(kept, steps)
    return [step for step in kept if step not in later] if later else []


def _late_start(ranks: Sequence[RankData], steps: Table, kept: Sequence[int]) -> int | None:
    """Return the first step of an Nsight Systems capture if it was held up on some rank, otherwise None.

    Observed: 106 ms and 138 ms in the first all-reduce, until the last rank had opened its capture range.
    """
    if ranks[0].source != "nsys" or not ranks[0].sees_communication or len(kept) < 3:
        return None
    for data in ranks:
        own = steps.take((steps["rank"] == data.rank) & np.isin(steps["step"], kept)).sort("step")
        if len(own) and own["step_ns"][0] > _HELD_UP * float(np.median(own["step_ns"][1:])):
            return kept[0]
    return None


def _later_in_window(numbers: Sequence[int], steps: Table) -> list[int]:
    """Return the steps that are not the first of a window: the step before is recorded."""
    recorded = set(steps["step"].tolist())
    return [step for step in numbers if step - 1 in recorded]


def _warm_up(ranks: Sequence[RankData], steps: Table, kept: Sequence[int]) -> list[int]:
    """Return the leading steps whose collectives differ from those of all later steps and that are much slower.

    In its first step DDP reduces in a fixed order, and afterwards it rebuilds its buckets: that is not a steady state.
    """
    signatures = [_signature(ranks[0], step) for step in kept]
    duration = {step: float(np.median(steps["step_ns"][steps["step"] == step])) for step in kept}
    warm_up = []
    for index, step in enumerate(kept[: len(kept) // 2]):
        later = kept[index + 1 :]
        slow = duration[step] > _WARM_UP * float(np.median([duration[other] for other in later]))
        if not slow or signatures[index] in signatures[index + 1 :]:
            break
        warm_up.append(step)
    return warm_up


def _signature(data: RankData, step: int) -> tuple[tuple[tuple[int, int], int], ...]:
    """Return how many collectives of each kind and size a step had."""
    rows = data.comms["step"] == step
    kinds, sizes = data.comms["kind"][rows].tolist(), data.comms["in_nelems"][rows].tolist()
    return tuple(sorted(Counter(zip(kinds, sizes, strict=True)).items()))


def _list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
