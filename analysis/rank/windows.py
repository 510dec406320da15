"""Recognises several files as windows of one process: profiler cycles, or a log folder of TensorBoard.

Windows of one process have the same process id and never overlap. Ranks of one job record the same steps at the same
time, so theirs do. Files of two runs have different process ids.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.analysis.rank.rank_data import RankData
from rankscope.analysis.rank.steps import host_steps
from rankscope.analysis.read.rank_trace import RankTrace, end_of

Span = tuple[int, int]


def are_windows(traces: Sequence[RankTrace]) -> bool:
    """Return whether traces are windows of one process; with different step numbers, whether they do not overlap."""
    spans = [_span(trace.launches, trace.host, trace.device) for trace in traces]
    numbers = [set(host_steps(trace.host)["step"].tolist()) for trace in traces]
    return _fit(spans, [process_of(trace.launches, trace.host) for trace in traces], numbers)


def are_windows_of(ranks: Sequence[RankData]) -> bool:
    """Return the same for traces that were prepared."""
    spans = [_span(data.launches, data.host, data.kernels) for data in ranks]
    numbers = [set(data.steps["step"].tolist()) for data in ranks]
    return _fit(spans, [process_of(data.launches, data.host) for data in ranks], numbers)


def _fit(spans: Sequence[Span | None], processes: Sequence[str | None], numbers: Sequence[set[int]]) -> bool:
    if len({process for process in processes if process is not None}) > 1:
        return False  # two runs, even if no step number is in both
    if all(numbers) and sum(map(len, numbers)) == len(set().union(*numbers)):
        return True  # cycles of one profiler: no step is in two files
    ordered = sorted(span for span in spans if span is not None)
    apart = len(ordered) == len(spans) and all(end <= start for (_, end), (start, _) in pairwise(ordered))
    return apart and len(set(processes)) == 1 and processes[0] is not None


def process_of(launches: Table, host: Table) -> str | None:
    """Return the id of the process that made most runtime calls, or else most host records; None if there are none."""
    for table in (launches, host):
        if len(table):
            threads, counts = np.unique(table["thread"], return_counts=True)
            word: str = table.words["thread"][threads[np.argmax(counts)]]
            return word.strip("()").split(",")[0]
    return None


def _span(*tables: Table) -> Span | None:
    """Return the first start and the last end of all records; None if there are none."""
    starts, ends = [], []
    for table in tables:
        known = table["start"] != UNKNOWN
        if known.any():
            starts.append(int(table["start"][known].min()))
            ends.append(int((table["end"] if "end" in table.columns else end_of(table))[known].max()))
    return (min(starts), max(ends)) if starts else None
