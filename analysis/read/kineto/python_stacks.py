"""Finds the user's Python function around given calls, by reading the Python frames of a trace separately.

If a trace has frames (`profile.with_stack=true`), they are most of it, and nothing else needs them, so no reader keeps
them. Input: files, and calls with their times and threads. Output: `file.py(line): function` for each call, the
innermost one that belongs neither to torch nor to the standard library. The line is the first line of the function.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.analysis.core.table import Table
from rankscope.analysis.read.decode import nanoseconds
from rankscope.analysis.read.kineto import reader as kineto
from rankscope.analysis.read.kineto.event_schema import Event
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

    `base` is the origin of the file's times (ns since 1970).
    """
    threads, order = calls.texts("thread"), np.argsort(calls["start"], kind="stable")
    times = calls["start"][order]
    reader, _ = kineto.start(path, None, fast=False, window=None)
    found: list[tuple[int, str | None]] = [(-1, None)] * len(calls)
    for block in reader:
        frames = [event for event in block if isinstance(event, Event) and is_users(event)]
        starts = nanoseconds([frame.ts for frame in frames]) + base
        ends = starts + nanoseconds([frame.dur for frame in frames])
        first, last = np.searchsorted(times, starts, "left"), np.searchsorted(times, ends, "left")
        for at in np.flatnonzero(first < last).tolist():
            frame, start = frames[at], int(starts[at])
            for row in order[first[at] : last[at]].tolist():
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
