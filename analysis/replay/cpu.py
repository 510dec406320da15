"""The points and edges of one rank without a device: the thread of the steps, and the collectives beside it.

Input: a rank's tables on the common clock. Output: `Part`. A CPU trace does not say when the thread of the steps waits
for a collective. It does if nothing runs when the collective ends, or during most of it: then all time without
operators since the mark before is waiting, and the thread goes on after the collective's end.
"""

import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.intervals import Intervals, covers, either, measure
from rankscope.analysis.core.table import Column, Table
from rankscope.analysis.replay.graph import NONE, Work
from rankscope.analysis.replay.part import Part

_MOSTLY = 0.5


def part_of(steps: Table, comm: Table, compute: Intervals, waits: Intervals) -> Part:
    """Return points and edges of one rank.

    `steps`: start and end of each, the boundary that its end sets, and whether it is the first that counts (`opens`).
    `comm`: its collectives, with `shared` (partners are known). `compute` and `waits`: when operators ran, and when it
    waited for a batch. All times are on the common clock.
    """
    busy = either(compute, waits)
    comm = comm.with_columns(end=_seen_ends(comm, busy, steps))
    took = comm["end"] - comm["start"]
    idle = took - measure(busy, comm["start"], comm["end"])
    awaited = np.flatnonzero(~covers(busy, comm["end"] - 1) | (idle > _MOSTLY * took))
    marks = np.concatenate([steps["start"], steps["end"], comm["start"], comm["end"][awaited], waits[0], waits[1]])
    marks = group_by.distinct(marks[(marks >= steps["start"].min()) & (marks <= steps["end"].max())])
    before = np.append(marks[:1], marks[:-1])
    computed, loaded = measure(compute, before, marks), measure(waits, before, marks)
    other = marks - before - computed
    other = np.where(np.isin(marks, comm["end"][awaited]), loaded, other)  # the rest is waiting
    first = 2 * len(marks) + 2 * np.arange(len(comm))
    time = np.concatenate([marks, before + computed, np.empty(2 * len(comm), np.int64)])
    time[first], time[first + 1] = comm["start"], comm["end"]
    part = Part(time=time, starts=first, finishes=first + 1, ends=_ends(len(time), marks, steps))
    _chain(part, computed, other, loaded * 2 > other, steps)
    _collectives(part, comm, marks, awaited)
    return part


def _seen_ends(comm: Table, busy: Intervals, steps: Table) -> Column:
    """Return when the thread saw each collective end.

    A backend can end its record after the thread has gone on. So if nothing ran during most of a collective, and then
    something did, or the step ended, that is its end.
    """
    stops = np.sort(np.concatenate([busy[1], steps["start"]]))
    goes_on = np.sort(np.concatenate([busy[0], steps["end"]]))
    ends = comm["end"].copy()
    for row, (start, end) in enumerate(zip(comm["start"].tolist(), comm["end"].tolist(), strict=True)):
        low, high = np.searchsorted(goes_on, [start, end])
        times = goes_on[low:high]
        before = stops[np.maximum(np.searchsorted(stops, times, "right") - 1, 0)]
        idle = times - np.maximum(before, start)
        long = np.flatnonzero(idle > _MOSTLY * (end - start))
        if len(long):
            ends[row] = times[long[0]]
    return ends


def _ends(count: int, marks: Column, steps: Table) -> Column:
    """Return the boundary that each point sets: the first step that counts opens with one, each ends with one."""
    found = np.full(count, NONE)
    found[np.searchsorted(marks, steps["start"][steps["opens"]])] = 0
    found[np.searchsorted(marks, steps["end"])] = steps["boundary"]
    return found


def _chain(part: Part, computed: Column, other: Column, loads: Column, steps: Table) -> None:
    """Join the marks of the thread: operators first, then waiting for a batch or other work on the host."""
    count = len(computed)
    rows = np.arange(1, count)
    middle = count + rows
    at = np.searchsorted(steps["start"], part.time[rows], "left") - 1
    step = steps["step"][np.maximum(at, 0)]
    part.add(source=rows - 1, target=middle, weight=computed[rows], work=int(Work.COMPUTE), step=step, name=NONE)
    work = np.where(loads, int(Work.LOADER), int(Work.HOST))[rows]
    part.add(source=middle, target=rows, weight=other[rows], work=work, step=step, name=NONE)


def _collectives(part: Part, comm: Table, marks: Column, awaited: Column) -> None:
    """Add the collectives: after the mark at which each starts, and before the mark of those that were awaited."""
    order, join = {"weight": 0, "work": int(Work.ORDER), "name": NONE}, part.finishes
    inside = np.flatnonzero(np.isin(comm["start"], marks))
    started = np.searchsorted(marks, comm["start"][inside])
    part.add(source=started, target=part.starts[inside], step=comm["step"][inside], **order)
    known = awaited[np.isin(comm["end"][awaited], marks)]
    part.add(source=join[known], target=np.searchsorted(marks, comm["end"][known]), step=comm["step"][known], **order)
    own = np.flatnonzero(~comm["shared"])
    part.add(
        source=part.starts[own],
        target=join[own],
        weight=comm["end"][own] - comm["start"][own],
        work=int(Work.COMMUNICATION),
        step=comm["step"][own],
        name=comm["name"][own],
        bytes=comm["bytes"][own],
    )
