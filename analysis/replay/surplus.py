"""The launches of work that a change removes: of kernels that the other ranks do not run, or less often.

`rank1.compute=median` gives rank 1 the kernels of the others. A kernel that does not run needs no launch either, and
the host does nothing before it. Input: a graph and the edges that are changed. Output: weights of its edges.
"""

import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.table import Column
from rankscope.analysis.replay.graph import NONE, Graph, Work


def without_launches(graph: Graph, rows: Column, same: Column, weight: Column) -> Column:
    """Return the weights without the launches of surplus records, and without the host's work before each of them.

    `rows` are the changed edges, `same` those of the same kinds on all ranks. Records are counted by step and name. Of
    n records where the other ranks have m (median), the launches keep m / n of their time, and the records m / n of
    the time that they start later than what they wait for.
    """
    records, edges = graph.records, graph.edges
    own = np.flatnonzero(records.edge != NONE)
    own = own[same[records.edge[own]]]
    kept = _kept(graph, own, rows)
    own, kept = own[kept < 1], kept[kept < 1]
    factor = np.ones(len(edges))
    at = group_by.of_keys(edges.target, records.start[own])
    late = np.flatnonzero((at != NONE) & np.isin(edges.work, (Work.LATENCY, Work.ORDER)))
    factor[late] = kept[at[late]]
    delay = np.zeros(len(edges))
    delay[late] = edges.delay[late] * (1 - kept[at[late]])
    call = _launching(graph)[own]
    known = call != NONE
    factor[call[known]] = kept[known]
    before = np.flatnonzero(edges.work == Work.HOST)
    at = group_by.of_keys(edges.target[before], edges.source[call[known]])
    factor[before[at != NONE]] = kept[known][at[at != NONE]]
    return weight * factor - delay


def _kept(graph: Graph, own: Column, rows: Column) -> Column:
    """Return for each of these records which share of its kind and step the others have, 1 if as many or more."""
    records = graph.records
    if not len(own):
        return np.ones(0)
    _, key = np.unique(np.stack([records.step[own], records.name[own]], axis=1), axis=0, return_inverse=True)
    ranks, at = np.unique(records.rank[own], return_inverse=True)
    count = np.bincount(key.ravel() * len(ranks) + at.ravel(), minlength=(int(key.max()) + 1) * len(ranks))
    count = count.reshape(-1, len(ranks))
    changed = rows[records.edge[own]]
    others = ~np.isin(ranks, np.unique(records.rank[own][changed]))
    if not others.any():
        return np.ones(len(own))
    usual = np.median(count[:, others], axis=1)[key.ravel()]
    share = np.minimum(1.0, usual / count[key.ravel(), at.ravel()])
    return np.where(changed, share, 1.0)


def _launching(graph: Graph) -> Column:
    """Return for each record the edge that is the time inside the call that launched it; NONE if unknown."""
    edges, records = graph.edges, graph.records
    inside = np.flatnonzero(edges.work == Work.LAUNCH)
    if not len(inside):
        return np.full(len(records.start), NONE)
    of_source = group_by.of_keys(edges.source, edges.source[inside])
    of_target = group_by.of_keys(edges.target, records.start)
    found = np.full(len(records.start), NONE)
    launches = np.flatnonzero((of_source != NONE) & (of_target != NONE))
    found[of_target[launches]] = inside[of_source[launches]]
    return found
