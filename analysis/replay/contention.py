"""By how much compute slows down while the same device communicates, and the durations that follow after a change.

A collective that waits or transfers takes SMs and memory bandwidth from the kernels beside it. So a rank that waits for
a late one computes more slowly, and if the late rank is mended, the others become faster as well. The recording tells
by how much: the same kernel (name and place within a step) on other ranks and in other steps, with more or less
communication beside it.
"""

import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.intervals import measure, union
from rankscope.analysis.core.record_kinds import COMMUNICATION, COMPUTE
from rankscope.analysis.core.table import Column
from rankscope.analysis.replay.graph import NONE, Graph

_LEAST_EVIDENCE = 5.0  # sum of squared differences of the share beside communication
_MOST = 1.0  # a kernel beside communication takes at most twice the time
ROUNDS = 8  # of replay and new durations, at most
_SETTLED = 2e-4  # share of compute by which a round changes it at the end


def beside(graph: Graph, times: Column) -> Column:
    """Return for each record the share of its time in which its device communicates."""
    records = graph.records
    start, end = times[records.start], times[records.end]
    share = np.zeros(len(start))
    for rows in group_by.positions(records.rank).values():
        comm = rows[records.role[rows] == COMMUNICATION]
        busy = union(start[comm], end[comm])
        share[rows] = measure(busy, start[rows], end[rows]) / np.maximum(end[rows] - start[rows], 1)
    return share


def slowdown(graph: Graph) -> float:
    """Return by what share of its duration a kernel takes longer beside communication; 0 if the recording cannot tell.

    A regression of log duration on the share beside communication, with a constant for each name and place.
    """
    records = graph.records
    took = graph.time[records.end] - graph.time[records.start]
    rows = np.flatnonzero((records.role == COMPUTE) & np.isin(records.step, graph.steps) & (took > 0))
    if not len(rows):
        return 0.0
    keys = np.stack([records.name[rows], _place(records.rank[rows], records.step[rows], records.name[rows])], axis=1)
    _, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.ravel()
    weight = took[rows].astype(float)
    share = _centred(beside(graph, graph.time)[rows], group)
    length = _centred(np.log(weight), group)
    evidence = float((share**2).sum())
    if evidence < _LEAST_EVIDENCE:
        return 0.0
    slope = float((weight * share * length).sum() / (weight * share**2).sum())
    return float(np.clip(np.expm1(slope), 0.0, _MOST))


def _place(rank: Column, step: Column, name: Column) -> Column:
    """Return the how-manieth record of its name each is within a step of a rank; rows are in order of start."""
    order = np.lexsort([np.arange(len(rank)), name, step, rank])
    keys = np.stack([rank, step, name], axis=1)[order]
    new = np.ones(len(order), bool)
    new[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    at = np.arange(len(order))
    place = np.empty(len(order), np.int64)
    place[order] = at - np.maximum.accumulate(np.where(new, at, 0))
    return place


def _centred(values: Column, group: Column) -> Column:
    count = np.bincount(group)
    return np.asarray(values - (np.bincount(group, values) / count)[group])


def undisturbed(graph: Graph, slow: float) -> Column:
    """Return the weights of the edges with compute as if nothing communicated beside it."""
    rows = _compute(graph)
    weight = graph.edges.weight.astype(float)
    weight[graph.records.edge[rows]] /= 1 + slow * beside(graph, graph.time)[rows]
    return weight


def replay(graph: Graph, undisturbed: Column, slow: float) -> tuple[Column, Column]:
    """Return the times and the weights in which compute has the speed that the communication beside it allows.

    What a rank's compute has beside it depends on when all ranks come, and that on its speed. So replays follow one
    another, each with half of what the last one changes, because with all of it two ranks can swap places for ever.
    """
    rows = _compute(graph)
    edge = graph.records.edge[rows]
    share = beside(graph, graph.time)[rows]
    times, weight = graph.time, graph.edges.weight
    for _ in range(ROUNDS if slow else 1):
        disturbed = undisturbed.astype(float)
        disturbed[edge] *= 1 + slow * share
        weight = np.rint(disturbed).astype(np.int64)
        times = graph.replay(weight)
        now = beside(graph, times)[rows]
        if slow * float(np.abs(now - share).mean() if len(rows) else 0.0) <= _SETTLED:
            break
        share = (share + now) / 2
    return times, weight


def _compute(graph: Graph) -> Column:
    return np.flatnonzero((graph.records.role == COMPUTE) & (graph.records.edge != NONE))
