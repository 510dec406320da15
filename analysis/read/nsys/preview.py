"""Looks into an export of Nsight Systems without reading it completely: which processes it holds, and their time."""

from pathlib import Path

import msgspec
import numpy as np

from rankscope.analysis.core.table import UNKNOWN
from rankscope.analysis.read.nsys.export import GRAPHS, KERNELS, PROCESS_BITS, Export
from rankscope.analysis.read.nsys.ranges import read_ranges


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """What a quick look at an export tells: which processes trained, and when."""

    processes: list[int]  # the upper part of their global ids
    session_start: int | None  # Unix ns
    window: tuple[int, int] | None  # first and last event (ns), Unix time if `comparable`
    comparable: bool  # whether `window` is in Unix time


def glance(path: Path, label: str, steps: str | None = None) -> Glance:
    """Look into an export without reading it completely; raises the same errors as `reader.read`."""
    export = Export(path, label)
    try:
        table = next((name for name in (KERNELS, GRAPHS) if export.has(name, "globalPid", "start", "end")), None)
        if table is not None:
            processes = [
                export.whole(row[0]) for row in export.rows(f"SELECT DISTINCT globalPid >> {PROCESS_BITS} FROM {table}")
            ]
            found = export.rows(f"SELECT MIN(start), MAX(end) FROM {table}")[0]
            span = tuple(None if value is None else export.whole(value) for value in found)
        else:
            ranges = read_ranges(export, steps)
            chosen = ranges.is_step if ranges.is_step.any() else np.ones(len(ranges.names), bool)
            processes = [int(value) for value in np.unique(ranges.thread[chosen] >> PROCESS_BITS)]
            known = ranges.end[chosen & (ranges.end != UNKNOWN)]
            span = (ranges.start[chosen].min(), known.max()) if len(known) else (None, None)
        origin = export.origin
        first, last = span
        window = None if first is None or last is None else (int(first), int(last))
        return Glance(
            processes=sorted(processes),
            session_start=export.session_start,
            window=window and (window[0] + (origin or 0), window[1] + (origin or 0)),
            comparable=origin is not None,
        )
    finally:
        export.close()
