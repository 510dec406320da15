"""The data of a timeline: the parts of each rank's steps, its collectives, ranges and kernels.

Input: an `Analysis`. Output: a `Timeline`. All times are integer nanoseconds on the common clock. The figure, the
interactive page and the Perfetto trace are all made from these tables, so they show the same.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from rankscope.analysis.align.groups import group_name
from rankscope.analysis.core import at_once, group_by, on_disk
from rankscope.analysis.core.intervals import EMPTY, Intervals, covers
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.packed import LazyTable
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.measure.breakdown import communication_sets
from rankscope.analysis.rank.rank_data import RankData
from rankscope.analysis.result import Analysis
from rankscope.analysis.show.timeline.codes import COMPUTE, COPY, DATA_STALL, HOST_GAP, TRANSFER, UNSPLIT, WAIT
from rankscope.analysis.show.timeline.tiles import lanes, tile

WHOLE_WINDOW = -1  # the number of the only step if a recording has no steps
MOST_ROWS = 64  # with more ranks, the figure and the page show most of them only as a density
_SHOWN_OF_MANY = 12  # ranks of a folded timeline that have their own row
_NOTHING = np.zeros(0, np.int64)
NO_INTERVALS = Table({"start": _NOTHING, "end": _NOTHING, "name": _NOTHING.astype(np.int32)}, {"name": []})


class RankView(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's tables; `ranges` and `kernels` are empty if the rank is only part of a density."""

    rank: int
    steps: Table  # step, start, end
    parts: Table  # step, start, end, part (code into NAMES): the six parts that tile each step
    calls: Table  # step, start, ready (UNKNOWN: not split), end, kind, bytes, group, call, lateness, exposed, lane
    comm: Table  # start, end, part, hidden: communication, and whether compute hid it
    ranges: Table  # start, end, name: outermost annotations, from their first device record to their last
    host_ranges: Table  # start, end, name: the same annotations on the CPU
    kernels: Table  # start, end, name, role, stream

    def window(self, step: int) -> tuple[int, int] | None:
        """Return start and end of a step on the device, None if this rank does not have the step."""
        at = np.flatnonzero(self.steps["step"] == step)
        return (int(self.steps["start"][at[0]]), int(self.steps["end"][at[0]])) if len(at) else None


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The latest rank of a step, and the collective at which it was latest."""

    step: int
    rank: int
    call: int
    lateness_ns: int
    start: int  # when this rank arrived at the collective
    others: int  # the median of the other ranks' arrivals
    late: bool  # whether the lateness reaches the threshold
    cause: str | None
    excess_ns: dict[str, int]  # by cause, if it is late: its excess over the median of the others


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is drawn for one recording."""

    name: str
    world_size: int
    steps: list[int]
    typical: int  # the step to show first: a late step of median lateness, otherwise a step of median length
    judged: list[int]  # the steps of which lateness is judged
    views: list[RankView]  # in the order of ranks
    shown: list[int]  # ranks that get their own row
    lateness: dict[int, dict[int, int]]  # step -> rank -> ns
    marks: dict[int, Mark]  # step -> its latest rank
    step_ns: int  # median step, to which lateness is compared
    threshold_ns: int  # a smaller lateness does not count
    device: bool  # False: recorded on a CPU
    critical: dict[int, Table] = {}  # rank -> start, end: when its work decides the length of the steps

    def view(self, rank: int) -> RankView:
        return next(view for view in self.views if view.rank == rank)

    @property
    def rows(self) -> list[RankView]:
        """The ranks that get their own row."""
        wanted = set(self.shown)
        return [view for view in self.views if view.rank in wanted]

    @property
    def folded(self) -> list[RankView]:
        """The ranks that are drawn only as a density."""
        wanted = set(self.shown)
        return [view for view in self.views if view.rank not in wanted]

    def window(self, step: int) -> tuple[int, int]:
        """Return the first start and the last end of a step over all ranks, at least 1 ns apart.

        Damaged times can leave a step without length, which cannot be drawn.
        """
        found = [window for view in self.views if (window := view.window(step)) is not None]
        first = min(start for start, _ in found)
        return first, max(first + 1, *(end for _, end in found))


def build(
    analysis: Analysis,
    name: str,
    *,
    step: int | None = None,
    ranks: Sequence[int] | None = None,
    most: int = MOST_ROWS,
    only_typical: bool = False,
) -> Timeline:
    """Return what is drawn of `analysis`: `step`, all analysed steps or only the typical one; `ranks` or all ranks.

    With more than `most` ranks, only the latest and the typical ones get rows; the others become a density. Raises
    `AnalysisError` if the step or a rank does not exist.
    """
    windows, numbers = _windows(analysis, step)
    present = sorted(set(windows["rank"].tolist()))
    if ranks is not None and set(ranks) - set(present):
        lacking = ", ".join(map(str, sorted(set(ranks) - set(present))))
        raise AnalysisError(f"{name}: the recording has no rank {lacking}, only {_span(present)}")
    wanted = sorted(set(ranks)) if ranks is not None else present
    lateness, marks = _lateness(analysis, numbers)
    shown = wanted if len(wanted) <= most else _worth_a_row(lateness, wanted)
    judged = [number for number in numbers if number in set(analysis.steps_judged)]
    typical = _typical(marks, windows.take(np.isin(windows["rank"], wanted)), judged or numbers)
    step_ns = _median_length(windows, numbers)
    if only_typical:
        windows, numbers = windows.take(windows["step"] == typical), [typical]
    of_rank = group_by.positions(analysis.calls["rank"])
    views = []
    for data in analysis.ranks:
        own = windows.take(windows["rank"] == data.rank)
        if data.rank in set(wanted):
            calls = analysis.calls.take(of_rank.get(data.rank, _NOTHING))
            views.append(_view(analysis, data, own, calls, detailed=data.rank in set(shown)))
    limits = analysis.options.limits
    bound = analysis.alignment.bound_ns or 0
    return Timeline(
        name=name,
        world_size=analysis.world_size,
        steps=numbers,
        typical=typical,
        judged=judged,
        views=sorted(views, key=lambda view: view.rank),
        shown=shown,
        lateness=lateness,
        marks=marks,
        step_ns=step_ns,
        threshold_ns=int(max(limits.straggler_share * step_ns, limits.straggler_errors * bound)),
        device=analysis.ranks[0].mode == "device",
    )


def _typical(marks: dict[int, Mark], windows: Table, candidates: Sequence[int]) -> int:
    late = sorted((mark.lateness_ns, mark.step) for mark in marks.values() if mark.late)
    if late:
        return late[(len(late) - 1) // 2][1]
    of_step = group_by.positions(windows["step"])
    rows = [(of_step[step], step) for step in candidates if step in of_step]
    lengths = sorted((int(windows["end"][at].max() - windows["start"][at].min()), step) for at, step in rows)
    return lengths[(len(lengths) - 1) // 2][1]


def _median_length(windows: Table, steps: Sequence[int]) -> int:
    lengths = (windows["end"] - windows["start"])[np.isin(windows["step"], steps)]
    return int(np.median(lengths)) if len(lengths) else 0


def _windows(analysis: Analysis, step: int | None) -> tuple[Table, list[int]]:
    """Return (rank, step, start, end) of all steps on the common clock, and the numbers of the steps to draw."""
    table = analysis.step_table
    if not len(table):
        if step is not None:
            raise AnalysisError(f"step {step}: the recording has no steps; omit --step")
        whole = [(data.rank, *data.span) for data in analysis.ranks if data.span is not None]
        if not whole:
            raise AnalysisError("nothing to draw: no rank recorded any work")
        rank, start, end = (np.array(column) for column in zip(*whole, strict=True))
        for at, number in enumerate(rank.tolist()):
            start[at], end[at] = analysis.alignment.to_common(number, np.array([start[at], end[at]]))
        number = np.full(len(rank), WHOLE_WINDOW)
        return Table({"rank": rank, "step": number, "start": start, "end": end}), [WHOLE_WINDOW]
    windows = Table({"rank": table["rank"], "step": table["step"], "start": table["start_ns"], "end": table["end_ns"]})
    recorded = sorted(set(table["step"].tolist()))
    if step is not None and step not in recorded:
        raise AnalysisError(f"the recording has no step {step}, only {_span(recorded)}")
    return windows, [step] if step is not None else analysis.steps_analysed or recorded


def _span(numbers: Sequence[int]) -> str:
    whole = len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1
    return f"{numbers[0]} to {numbers[-1]}" if whole else ", ".join(map(str, numbers))


# --- who is late -----------------------------------------------------------------------------------------------


def _lateness(analysis: Analysis, steps: Sequence[int]) -> tuple[dict[int, dict[int, int]], dict[int, Mark]]:
    late, calls = analysis.late_table, analysis.calls
    counted = {(item.step, item.rank): item for item in analysis.verdict.per_step}
    of_step = group_by.positions(late["step"])
    lateness: dict[int, dict[int, int]] = {}
    marks = {}
    for step in steps if analysis.world_size > 1 else ():
        rows = of_step.get(step, _NOTHING)
        if not len(rows):
            continue
        lateness[step] = dict(zip(late["rank"][rows].tolist(), late["lateness_ns"][rows].tolist(), strict=True))
        worst = int(rows[np.argmax(late["lateness_ns"][rows])])
        call, amount = int(late["row"][worst]), int(late["lateness_ns"][worst])
        found = counted.get((step, int(late["rank"][worst])))
        marks[step] = Mark(
            step=step,
            rank=int(late["rank"][worst]),
            call=int(calls["call"][call]),
            lateness_ns=amount,
            start=int(calls["start_ns"][call]),
            others=int(calls["start_ns"][call]) - amount,
            late=found is not None,
            cause=None if found is None else found.cause,
            excess_ns={} if found is None else found.excess_ns,
        )
    return lateness, marks


def _worth_a_row(lateness: dict[int, dict[int, int]], ranks: Sequence[int]) -> list[int]:
    """Choose from many ranks the latest ones and those of median lateness; return them in order."""
    worst = {rank: max((found.get(rank, 0) for found in lateness.values()), default=0) for rank in ranks}
    order = sorted(ranks, key=lambda rank: -worst[rank])
    half = _SHOWN_OF_MANY // 2
    middle = max(half, (len(order) - half) // 2)
    return sorted({*order[:half], *order[middle : middle + half]})


# --- one rank ----------------------------------------------------------------------------------------------------


def _view(analysis: Analysis, data: RankData, windows: Table, calls: Table, *, detailed: bool) -> RankView:
    whole = np.array([windows["start"].min(), windows["end"].max()]) if len(windows) else np.zeros(2, np.int64)
    transfer, wait, comm, compute, copies, data_wait = (
        _reaching(analysis, data.rank, part, whole)
        for part in (*communication_sets(calls), data.compute, data.copies, data.data_wait)
    )
    order = windows.sort("start")
    by_priority = [compute, transfer, wait, comm, copies, data_wait]
    codes = [COMPUTE, TRANSFER, WAIT, UNSPLIT, COPY, DATA_STALL]
    parts = tile(by_priority, codes, HOST_GAP, order["start"], order["end"])
    parts = parts.with_columns(step=order["step"][parts["window"]])
    kernels = ranges = on_host = NO_INTERVALS
    if detailed:
        on_host, ranges, kernels = data.ranges, data.device_ranges, data.kernels
    return RankView(
        rank=data.rank,
        steps=order.with_columns(rank=np.full(len(order), data.rank)),
        parts=parts,
        calls=LazyTable(lambda: _calls(calls), len(calls)),  # a density shows only the parts
        comm=LazyTable(lambda: _communication(transfer, wait, comm, compute, whole)),
        ranges=_shifted(analysis, data.rank, ranges),
        host_ranges=_shifted(analysis, data.rank, on_host),
        kernels=LazyTable(lambda: _shifted(analysis, data.rank, kernels), len(kernels)),
    )


def _communication(transfer: Intervals, wait: Intervals, comm: Intervals, compute: Intervals, whole: Column) -> Table:
    spans = tile([transfer, wait, comm], [TRANSFER, WAIT, UNSPLIT], UNKNOWN, whole[:1], whole[1:], extra=compute)
    spans = spans.take(spans["part"] != UNKNOWN)
    return spans.with_columns(hidden=covers(compute, spans["start"]))


def _reaching(analysis: Analysis, rank: int, part: Intervals, whole: Column) -> Intervals:
    """Return the intervals of a set that reach into a window, on the common clock; of millions most do not."""
    found = [EMPTY]
    for rows in at_once.pieces(part.shape[1]):
        start, end = (analysis.alignment.to_common(rank, times[rows]) for times in part)
        low, high = np.searchsorted(end, whole[0], "right"), np.searchsorted(start, whole[1], "left")
        found.append(np.stack([start[low:high], end[low:high]]))
        on_disk.release()
    return np.concatenate(found, axis=1)


def _shifted(analysis: Analysis, rank: int, table: Table) -> Table:
    to_common = analysis.alignment.to_common
    return table.with_columns(start=to_common(rank, table["start"]), end=to_common(rank, table["end"]))


def _calls(calls: Table) -> Table:
    """Return the collectives of one rank by start; collectives that overlap get different lanes."""
    rows = calls.sort("start_ns")
    words = [group_name(word) or "" for word in rows.words["group_id"]]
    return Table(
        {
            "step": rows["step"],
            "start": rows["start_ns"],
            "ready": rows["ready_ns"],
            "end": rows["end_ns"],
            "kind": rows["kind"],
            "bytes": rows["bytes"],
            "group": rows["group_id"],
            "call": rows["call"],
            "lateness": rows["lateness_ns"],
            "exposed": rows["exposed_ns"],
            "lane": lanes(rows["start_ns"], rows["end_ns"]),
        },
        {"kind": rows.words["kind"], "group": words},
    )
