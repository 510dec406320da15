"""The steps of one rank: its annotations on the host, the step of each piece of GPU work, and the device windows."""

import re

import numpy as np

from rankscope.analysis.core import at_once, group_by
from rankscope.analysis.core.name_patterns import remembered
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.rank.rank_data import NO_STEP
from rankscope.analysis.read.rank_trace import end_of

STEP = re.compile(r"ProfilerStep\s*#(\d{1,18})$")  # a longer number fits no column
COVERED = 0.98  # share of a step's launches that must not be lost; with fewer, the step is partial
LINKED = 0.5  # share of records with a launch above which a record without one is an exception


@remembered
def step_number(name: str) -> int:
    """Return the number of the step that a mark of this name begins, `NO_STEP` if it is no mark."""
    match = STEP.match(name)
    return int(match[1]) if match else NO_STEP


def marks_steps(host: Table) -> bool:
    """Return whether `host_steps` finds a step."""
    return len(_marks(host)) > 0


def host_steps(host: Table) -> Table:
    """Return the steps in order of time: step, host_start, host_end, thread. Each number occurs once.

    A mark inside another one is the same step, marked twice. Numbers that begin again (a profiler for each epoch) are
    counted on, with a gap of one, because the steps between were not recorded.
    """
    rows = _marks(host)
    number = rows.of_words("name", step_number, otherwise=NO_STEP)
    steps = Table(
        {"step": number, "host_start": rows["start"], "host_end": end_of(rows), "thread": rows["thread"]}
    ).sort("host_start")
    steps = steps.take(disjoint(steps["host_start"], steps["host_end"]))
    return steps.with_columns(step=_counted_on(steps["step"]))


def _marks(host: Table) -> Table:
    marks = np.flatnonzero(host.of_words("name", step_number, otherwise=NO_STEP) != NO_STEP)
    rows = host.take(marks, "name", "start", "duration", "thread")
    return rows.take((rows["start"] != UNKNOWN) & (rows["duration"] >= 0))


def disjoint(start: Column, end: Column) -> Column:
    """Return the positions of the intervals, in order of start, of which no half lies in an earlier one."""
    kept: list[int] = []
    until = UNKNOWN
    for at in np.lexsort([-end, start]).tolist():
        if not kept or start[at] + (end[at] - start[at]) // 2 >= until:
            kept.append(at)
            until = int(end[at])
    return np.array(kept, np.int64)


def _counted_on(numbers: Column) -> Column:
    """Return numbers in order of time without repetitions."""
    if len(np.unique(numbers)) == len(numbers):
        return numbers
    result, offset, before = [], 0, None
    for number in numbers.tolist():
        if before is not None and number + offset <= before:
            offset = before + 2 - number
        before = number + offset
        result.append(before)
    return np.array(result, np.int64)


def numbers_repeat(host: Table, steps: Table) -> bool:
    """Return whether the numbers of the steps begin again, so that `host_steps` has counted them on."""
    found = set(map(step_number, host.words["name"]))
    return any(step not in found for step in steps["step"].tolist())


def step_at(times: Column, steps: Table) -> Column:
    """Return the number of the step whose host interval contains each time, `NO_STEP` if there is none."""
    if not len(steps):
        return np.full(len(times), NO_STEP)
    result = np.empty(len(times), np.int64)
    for rows in at_once.pieces(len(times)):
        part = times[rows]
        at = np.searchsorted(steps["host_start"], part, "right") - 1
        inside = (at >= 0) & (part < steps["host_end"][at])
        result[rows] = np.where(inside, steps["step"][at], NO_STEP)
    return result


def step_of_device_work(table: Table, steps: Table) -> Column:
    """Return the step of each device record (rows in order of start): the step that launched it.

    A record without launch belongs to the step at its own start. But if most records of the trace have a launch, then
    records before the first launched one of their stream are left over from before the window, and later ones belong
    to the step of their predecessor. On a stream without any launch it is the step whose work the device had begun
    last, because the host may be a step ahead.
    """
    linked = table["launch_start"] != UNKNOWN
    step = step_at(table["launch_start"], steps)
    step[~linked] = NO_STEP
    if not len(table) or linked.mean() < LINKED:
        return np.where(linked, step, step_at(table["start"], steps))
    if linked.all():
        return step
    latest = np.maximum.accumulate(np.where(linked, np.arange(len(table)), -1))
    running = np.where(latest >= 0, step[np.maximum(latest, 0)], NO_STEP)
    for stream in np.unique(table["stream"][~linked]).tolist():
        rows = np.flatnonzero(table["stream"] == stream)
        has = linked[rows]
        if has.any():
            previous = np.maximum.accumulate(np.where(has, np.arange(len(rows)), -1))
            step[rows] = np.where(previous >= 0, step[rows[np.maximum(previous, 0)]], NO_STEP)
        else:
            step[rows] = running[rows]
    return step


def device_windows(steps: Table, kernels: Table, covered: tuple[Column, Column], waits: Table, mode: str) -> Table:
    """Return each step with its annotation on the host, its window, its records and launches, and its data wait.

    `covered` are the columns of `coverage.coverage`. On a device, a step lasts from the end of the previous step's
    last work to the end of its own, so steps tile the timeline. The first begins where left-over work ends, or with its
    annotation if there is none. On a CPU the annotation is the window.
    """
    count = len(steps)
    of_step = group_by.of_keys(kernels["step"], steps["step"])
    records = group_by.sums(np.ones(len(kernels), np.int64), of_step, count)
    start, end = steps["host_start"].copy(), steps["host_end"].copy()
    if mode == "device" and count:
        last = np.full(count, UNKNOWN)
        np.maximum.at(last, of_step[of_step >= 0], kernels["end"][of_step >= 0])
        before = _left_over_end(kernels, steps)
        begin = np.maximum(before, UNKNOWN + 1) if before is not None else steps["host_start"][0]
        # A step without device work has no window: it ends where it begins.
        ends = np.maximum.accumulate(np.concatenate([[begin], last]))
        start, end = ends[:-1], ends[1:]
        opens = _cycle_starts(steps)
        start = np.where(opens & (start < steps["host_start"]), np.maximum(start, _gap_start(start, steps)), start)
        end = np.maximum(end, start)
    launched, found = covered
    return Table(
        {
            "step": steps["step"],
            "host_start": steps["host_start"],
            "host_end": steps["host_end"],
            "start": start,
            "end": end,
            "records": records,
            "launches": launched,
            "covered": found,
            "data_wait": _waits(steps, waits),
            "complete": (records > 0) & (end > start) & (found >= COVERED * launched),
        }
    )


def whole_window(number: int, kernels: Table, host: tuple[int, int]) -> Table:
    """Return a window of a trace without steps as one stretch, in the form of `device_windows`."""
    first, last = int(kernels["start"].min()), int(kernels["end"].max())
    row = {
        "step": number,
        "host_start": min(first, host[0]),
        "host_end": max(last, host[1]) + 1,
        "start": first,
        "end": last,
        "records": len(kernels),
        "launches": 0,
        "covered": 0,
        "data_wait": 0,
        "complete": True,
    }
    return Table({name: np.array([value]) for name, value in row.items()})


def _cycle_starts(steps: Table) -> Column:
    """Return for each step whether its predecessor is missing, so that a new profiler cycle begins there."""
    opens = np.zeros(len(steps), bool)
    opens[1:] = np.diff(steps["step"]) != 1
    return opens


def _gap_start(start: Column, steps: Table) -> Column:
    """Return the start of each window, moved to its annotation if it would reach into the pause between two cycles."""
    return np.where(start < steps["host_start"], steps["host_start"], start)


def _left_over_end(kernels: Table, steps: Table) -> int | None:
    """Return the end of the last work launched before the first step; None if nothing was left over."""
    own = kernels["step"] != NO_STEP
    first = kernels["start"][own].min() if own.any() else steps["host_end"][-1]
    left = (~own) & (kernels["start"] < first)
    if not left.any():
        return None
    end = int(kernels["end"][left].max())
    return end if end > steps["host_start"][0] else None


def _waits(steps: Table, waits: Table) -> Column:
    return group_by.sums(waits["end"] - waits["start"], group_by.of_keys(waits["step"], steps["step"]), len(steps))
