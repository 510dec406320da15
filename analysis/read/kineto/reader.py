"""Reads a Chrome trace that torch.profiler (Kineto) wrote, in any version: one file in, a `RankTrace` out."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.analysis.core.notices import Notice, UnreadableTraceError
from rankscope.analysis.core.record_kinds import is_launch
from rankscope.analysis.core.table import UNKNOWN
from rankscope.analysis.read.decode import integers
from rankscope.analysis.read.kineto import stream
from rankscope.analysis.read.kineto.columns import Builder
from rankscope.analysis.read.kineto.events import EventReader
from rankscope.analysis.read.kineto.fast import machine_code
from rankscope.analysis.read.rank_trace import RankTrace
from rankscope.conf.plain_text import path_text


def has_scanner() -> bool:
    """Return whether the accelerated scanner can be used, that is, whether numba is installed (`rankscope[fast]`)."""
    return importlib.util.find_spec("numba") is not None


def is_compiled() -> bool:
    """Return whether loading the scanner is enough: this user has compiled this version for this processor."""
    return machine_code.are_kept()


def warm_up() -> None:
    """Load or compile the scanner if numba works, so that processes started later find the compiled code."""
    try:
        from rankscope.analysis.read.kineto.fast.machine_code import kernels

        kernels()
    except ImportError:
        return


def read(path: Path, label: str | None = None, *, fast: bool | None = None, window: int | None = None) -> RankTrace:
    """Read one trace file, named `label` in notices. Raises `UnreadableTraceError` if it gives no numbers at all.

    `fast` selects the accelerated scanner (default: if it is installed). `window` is the number of bytes processed
    at a time. Neither changes the result.
    """
    reader, builder = start(path, label, fast=fast, window=window)
    for block in reader:
        builder.add(block)
    trace = builder.finish(reader, base_time(reader.metadata))
    check_activity(trace)
    return trace


_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d{1,19})\b')


def rank_inside(path: Path) -> int | None:
    """Return the rank stated at the beginning of a trace; None if it states none or cannot be read."""
    try:
        match = _RANK.search(next(iter(stream.Stream(path, 1 << 16)), b""))
    except OSError:
        return None
    return int(match[1]) if match else None


def start(path: Path, label: str | None, *, fast: bool | None, window: int | None) -> "tuple[EventReader, Builder]":
    """Return the event reader of a file and the builder of its columns; for the arguments see `read`."""
    builder = Builder()
    scanner = None
    if has_scanner() if fast is None else fast:
        try:
            from rankscope.analysis.read.kineto.fast.scanner import WINDOW, Scanner

            scanner = Scanner(builder.codes)
            window = window or WINDOW
        except ImportError:  # numba does not fit this numpy or Python; the msgspec reader can read everything
            scanner = None
    return EventReader(path, label or path_text(path.name), window or stream.WINDOW, scanner), builder


def base_time(metadata: dict[str, Any]) -> int:
    """Return what the times of a file are counted from (ns since 1970)."""
    base = int(integers([metadata.get("baseTimeNanoseconds")])[0])
    return 0 if base == UNKNOWN else base


def check_activity(trace: RankTrace) -> None:
    """Refuse a file that recorded nothing, or launches without one GPU record: its shares would be zeros."""
    name = trace.files[0]
    if len(trace.device):
        return
    calls = trace.launches.words["name"]
    launching = np.array([is_launch(call) for call in calls] or [False])
    launches = int(launching[trace.launches["name"]].sum()) if len(trace.launches) else 0
    if launches:
        message = (
            f"{name}: {launches} launches but not one GPU record: CUPTI did not run (another profiler attached, "
            "or no permission); record it again with one profiler at a time"
        )
        kind, details = "gpu_records_missing", {"launches": launches}
    elif not len(trace.host):
        message, kind, details = f"{name}: no activity recorded; was the active window reached?", "no_activity", {}
    else:
        return
    notice = Notice(kind=kind, level="partial", rank=trace.rank, file=name, message=message, details=details)
    raise UnreadableTraceError(notice)
