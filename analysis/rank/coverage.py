"""Tells what a trace lost from what never leaves a record or cannot be linked to its launch.

Input: a rank's runtime calls and its device records of all devices. Output: for each step how many calls put work on a
device, and of how many the record is there. Lost are calls of kernels and graphs for which there is no record, linked
or not. These do not count as lost:

- a call without a record, if there is a record for it that names no launch (communication kernels of ROCm)
- calls while a graph is captured: they run later, as part of the graph
- memsets, and single copies: a driver may do them in another way, and then there is nothing to record
"""

import re
from collections import Counter

import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.name_patterns import found_in, remembered
from rankscope.analysis.core.record_kinds import KERNEL, WORK, work_of
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.rank.rank_data import NO_STEP
from rankscope.analysis.rank.steps import step_at

_CAPTURE = {
    "begin": found_in(re.compile("streambegincapture", re.IGNORECASE)),
    "end": found_in(re.compile("streamendcapture", re.IGNORECASE)),
}


def coverage(steps: Table, work: Table, calls: Table) -> tuple[Column, Column]:
    """Return (calls that put work on a device, those of them that are not lost) of each step.

    `work` are the records of all devices with `launch_start` and `step`, `calls` are those of `work_calls`.
    """
    step = step_at(calls["start"], steps)
    seen = group_by.among(calls["correlation"], work["correlation"])
    computing = np.isin(calls["kind"], (WORK["kernel"], WORK["graph"]))
    spare = _spare(steps, work)
    at = group_by.of_keys(step, steps["step"])

    def count(mask: Column) -> Column:
        return group_by.sums(mask.astype(np.int64), at, len(steps))

    lost = np.maximum(0, count(~seen & computing) - spare)
    copies = np.where(lost > 0, count(~seen & ~computing), 0)  # beside lost kernels, copies are lost too
    launched = count(computing | seen) + copies
    return launched, launched - lost - copies


def without_records(work: Table, calls: Table) -> dict[str, int]:
    """Return how many memsets and copies left no record, by the name of the call."""
    quiet = np.isin(calls["kind"], (WORK["memset"], WORK["copy"]))
    missing = calls.take(quiet & ~group_by.among(calls["correlation"], work["correlation"]))
    return dict(Counter(name for name in missing.texts("name") if name is not None))


def work_calls(launches: Table) -> Table:
    """Return the calls that put work on a device, with their kind, without those that a graph captured."""
    kind = launches.of_words("name", _work, otherwise=WORK[None])
    works = (kind != WORK[None]) & (launches["start"] != UNKNOWN)
    calls = launches.take(works, "name", "start", "thread", "correlation").with_columns(kind=kind[works]).moved()
    return calls.take(~_captured(calls, launches))


@remembered
def _work(call: str) -> int:
    return WORK[work_of(call)]


def _captured(calls: Table, launches: Table) -> Column:
    """Return which calls were made between the begin and the end of a graph's capture on their thread.

    A capture that began before the window has only an end, one that ended after it only a begin.
    """
    result = np.zeros(len(calls), bool)
    marks = {name: launches.where("name", holds) & (launches["start"] != UNKNOWN) for name, holds in _CAPTURE.items()}
    if not any(mask.any() for mask in marks.values()):
        return result
    for thread in np.unique(launches["thread"][marks["begin"] | marks["end"]]).tolist():
        on = launches["thread"] == thread
        begins, ends = (np.sort(launches["start"][marks[name] & on]) for name in ("begin", "end"))
        own = calls["thread"] == thread
        time = calls["start"]
        begun = np.searchsorted(begins, time, "right")
        ended = np.searchsorted(ends, time, "right")
        open_before = int(len(ends) > 0 and (not len(begins) or ends[0] < begins[0]))
        result |= own & (begun + open_before > ended)
    return result


def _spare(steps: Table, work: Table) -> Column:
    """Return how many kernels of each step are not the first record of a call: each may belong to a call without one.

    Further kernels of a graph belong to the graph.
    """
    wanted = (work["activity"] == KERNEL) & (work["step"] != NO_STEP)
    kernels = work.take(wanted, "step", "launch_name", "launch_start", "correlation")
    graph = kernels.of_words("launch_name", _work, otherwise=WORK[None]) == WORK["graph"]
    linked = kernels["launch_start"] != UNKNOWN
    _, first = np.unique(kernels["correlation"], return_index=True)
    again = np.ones(len(kernels), bool)
    again[first] = False
    spare = kernels["step"][~linked | (again & ~graph)]
    return group_by.sums(np.ones(len(spare), np.int64), group_by.of_keys(spare, steps["step"]), len(steps))
