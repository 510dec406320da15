"""Changes of the shape of a job: more or fewer ranks, larger buckets.

Input: a change and a graph. Output: the new weights of the edges.
"""

import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.table import UNKNOWN, Column
from rankscope.analysis.replay.changes import JobChange
from rankscope.analysis.replay.graph import NONE, Graph, Work
from rankscope.conf.contract import bus_factor

_MB = 1 << 20  # of DDP's bucket_cap_mb


def apply_to_job(graph: Graph, change: JobChange, weight: Column) -> Column:
    """Return the weights after a change of the job's shape; `AnalysisError` if the recording cannot tell."""
    rows = np.flatnonzero((graph.edges.work == Work.TRANSFER) & (graph.edges.call != NONE))
    if not len(rows):
        raise AnalysisError(f"{change.text}: no collective with known partners was recorded")
    return (_with_ranks if change.key == "ranks" else _with_buckets)(graph, change, weight, rows)


def _with_ranks(graph: Graph, change: JobChange, weight: Column, rows: Column) -> Column:
    """Scale every transfer by what its algorithm moves over each link: the same bus bandwidth with other ranks.

    Groups grow with the job. Work outside collectives stays as it is, as in weak scaling.
    """
    job = len(np.unique(graph.records.rank))
    factors = np.ones(len(rows))
    for at, row in enumerate(rows.tolist()):
        kind, size = graph.names[graph.edges.name[row]], int(graph.edges.size[row])
        later = max(round(size * change.value / job), 1)
        before, after = bus_factor(kind, size), bus_factor(kind, later)
        if before and after is not None:
            factors[at] = after / before
    result = weight.astype(float)
    result[rows] *= factors
    return result


def _with_buckets(graph: Graph, change: JobChange, weight: Column, rows: Column) -> Column:
    """Join consecutive all-reduces of a step to buckets of at most this size; the last one of each does all the work.

    The time of a bucket follows from a line through the recorded ones: a constant and the time per byte.
    """
    edges = graph.edges
    reduces = rows[[graph.names[code] == "allreduce" for code in edges.name[rows].tolist()]]
    reduces = reduces[(edges.bytes[reduces] != UNKNOWN) & np.isin(edges.step[reduces], graph.steps)]
    if not len(reduces):
        raise AnalysisError(f"{change.text}: no all-reduce of known size was recorded")
    line = _line(edges.bytes[reduces], weight[reduces])
    if line is None:
        raise AnalysisError(f"{change.text}: all recorded buckets have one size, so how time grows with it is unknown")
    constant, per_byte = line
    cap = change.value * _MB
    if cap < edges.bytes[reduces].max():
        raise AnalysisError(
            f"{change.text}: the job has buckets of {edges.bytes[reduces].max() / _MB:.0f} MB, and when a part of one "
            "would be ready was not recorded; give a larger size"
        )
    result = weight.astype(float)
    for step in graph.steps:
        for own in group_by.positions(np.where(edges.step[reduces] == step, edges.rank[reduces], NONE)).values():
            mine = reduces[own][edges.step[reduces[own]] == step]
            mine = mine[np.argsort(edges.call[mine], kind="stable")]
            _join(result, mine, edges.bytes[mine], cap, constant, per_byte)
    return result


def _join(weight: Column, rows: Column, sizes: Column, cap: float, constant: float, per_byte: float) -> None:
    """Give the work of each bucket to its last call."""
    total = 0
    for at, (row, size) in enumerate(zip(rows.tolist(), sizes.tolist(), strict=True)):
        total += size
        last = at + 1 == len(rows) or total + sizes[at + 1] > cap
        weight[row] = constant + per_byte * total if last else 0
        total = 0 if last else total


def _line(sizes: Column, times: Column) -> tuple[float, float] | None:
    """Return constant (ns) and slope (ns per byte) of the transfer times; None if all sizes are the same."""
    different = np.unique(sizes)
    if len(different) < 2:
        return None
    middle = np.array([np.median(times[sizes == size]) for size in different])
    slope, constant = np.polyfit(different, middle, 1, w=np.sqrt([int((sizes == size).sum()) for size in different]))
    return max(float(constant), 0.0), max(float(slope), 0.0)
