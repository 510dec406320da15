"""Finds the user's Python function around given calls, by reading the Python frames of a trace separately.

If a trace has frames (`profile.with_stack=true`), they are most of it, and nothing else needs them, so no reader keeps
them. Input: files, and calls with their times and threads. Output: `file.py(line): function` for each call, the
innermost one that belongs neither to torch nor to the standard library. The line is the first line of the function.
"""

import re
import sys
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.read.decode import integers, nanoseconds
from rankscope.analysis.read.kineto import reader as kineto
from rankscope.analysis.read.kineto.event_schema import Args, Event
from rankscope.analysis.read.rank_trace import Where

_FRAME = re.compile(r"^(?P<file>[^<].*\.py)\(\d+\): .+$")
_LIBRARY = re.compile(r"(?:^|/)(?:torch|site-packages|dist-packages|python3\.\d+)/")


def where(files: Sequence[Path], metadata: dict[str, Any]) -> Where | None:
    """Return a function that looks up calls in these files of one process; None if no stacks were recorded."""
    if not metadata.get("with_stack"):
        return None
    base = kineto.base_time(metadata)  # the same for all files of a process

    def look_up(calls: Table) -> list[str | None]:
        found: list[str | None] = [None] * len(calls)
        for file in files:
            found = [one or other for one, other in zip(found, functions(file, calls, base), strict=True)]
        return found

    return look_up


def functions(path: Path, calls: Table, base: int) -> list[str | None]:
    """Return the user's innermost function around each call; None if this file has no user frame around it.

    `base` is the origin of the file's times (ns since 1970). A frame has ended when its caller calls something else,
    even if the trace lost its return.
    """
    order = np.argsort(calls["start"], kind="stable")
    times = calls["start"][order]
    reader, _ = kineto.start(path, None, fast=False, window=None)
    around: list[tuple[int, int, Event]] = []  # frames of the user with a call inside: start, end
    called: list[tuple[int, int]] = []  # every frame: its caller, its start
    for block in reader:
        frames = [event for event in block if isinstance(event, Event) and event.cat == "python_function"]
        starts = nanoseconds([frame.ts for frame in frames]) + base
        ends = starts + nanoseconds([frame.dur for frame in frames])
        callers = integers((frame.args or Args()).python_parent for frame in frames)
        called += zip(callers.tolist(), starts.tolist(), strict=True)
        holds = np.searchsorted(times, starts, "left") < np.searchsorted(times, ends, "left")
        around += [
            (int(starts[at]), int(ends[at]), frames[at])
            for at in np.flatnonzero(holds).tolist()
            if is_users(frames[at])
        ]
    return _innermost(calls, order, around, sorted(called))


def _innermost(
    calls: Table, order: Column, around: list[tuple[int, int, Event]], called: list[tuple[int, int]]
) -> list[str | None]:
    """Return the name of the last frame of the call's thread that began before each call and has not ended."""
    threads, times = calls.texts("thread"), calls["start"][order]
    found: list[tuple[int, str | None]] = [(-1, None)] * len(calls)
    for start, end, frame in around:
        caller = int(integers([(frame.args or Args()).python_parent])[0])
        if caller != UNKNOWN:
            following = bisect_right(called, (caller, start))
            if following < len(called) and called[following][0] == caller:
                end = min(end, called[following][1])
        first, last = np.searchsorted(times, [start, end], "left")
        for row in order[first:last].tolist():
            if threads[row] == str((frame.pid, frame.tid)) and start > found[row][0]:
                found[row] = (start, str(frame.name))
    return [name for _, name in found]


def is_users(event: Event) -> bool:
    """Return whether an event is a Python frame that belongs neither to torch nor to the standard library."""
    if event.cat != "python_function" or event.ph != "X" or not isinstance(event.name, str):
        return False
    match = _FRAME.match(event.name)
    if match is None or _LIBRARY.search(match["file"]):
        return False
    return match["file"].split("/")[0].removesuffix(".py") not in sys.stdlib_module_names
