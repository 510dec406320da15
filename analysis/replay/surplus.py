"""The launches of work that a change removes: of kernels that the other ranks do not run, or less often.

`rank1.compute=median` gives rank 1 the kernels of the others. A kernel that does not run needs no launch either, and
the host does nothing before it. Input: a graph and the edges that are changed. Output: weights of its edges.
"""

import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.table import Column
from rankscope.analysis.replay.graph import NONE, Graph, Work

_MOST = 90  # percentile of the host's work before a launch; longer work is not only of this launch


def without_launches(graph: Graph, rows: Column, same: Column, weight: Column) -> Column:
    """Return the weights without the launches of surplus records, and without the host's work before each of them.

    `rows` are the changed edges, `same` those of the same kinds on all ranks. Records are counted by step and name. Of
    n records where the other ranks have m (median), the launches keep m / n of their time, and the records m / n of
    the time that they start later than what they wait for. Names that only some of the ranks have count together,
    because the same work may have other kernels there. Before a launch no more of the host's work is removed than
    is usual before a launch of this rank.
    """
    records, edges = graph.records, graph.edges
    own = np.flatnonzero(records.edge != NONE)
    own = own[same[records.edge[own]]]
    kept = _kept(graph, own, rows)
    call = _launching(graph)[own]
    changed = weight.astype(float)
    few = kept < 1
    at = group_by.of_keys(edges.target, records.start[own[few]])
    late = np.flatnonzero((at != NONE) & np.isin(edges.work, (Work.LATENCY, Work.ORDER)))
    share = kept[few][at[late]]
    changed[late] = changed[late] * share - edges.delay[late] * (1 - share)
    of_call = call != NONE
    launches, first = np.unique(call[of_call], return_inverse=True)  # one launch may start many records of a graph
    if len(launches):
        share = np.bincount(first, kept[of_call]) / np.bincount(first)
        changed[launches] *= share
        before = np.flatnonzero(edges.work == Work.HOST)
        at = group_by.of_keys(edges.target[before], edges.source[launches])
        before, share = before[at != NONE], share[at[at != NONE]]
        changed[before] -= (1 - share) * np.minimum(weight[before], _usual(edges.rank[before], weight[before]))
    return changed


def _usual(ranks: Column, weight: Column) -> Column:
    """Return for each edge what most edges of its rank are not longer than."""
    found = np.zeros(len(ranks))
    for own in group_by.positions(ranks).values():
        found[own] = np.percentile(weight[own], _MOST)
    return found


def _kept(graph: Graph, own: Column, rows: Column) -> Column:
    """Return for each of these records which share of its kind and step the others have, 1 if as many or more."""
    if not len(own):
        return np.ones(0)
    records = graph.records
    _, key = np.unique(np.stack([records.step[own], records.name[own]], axis=1), axis=0, return_inverse=True)
    ranks = np.unique(records.rank)
    key, at = key.ravel(), np.searchsorted(ranks, records.rank[own])
    changed = rows[records.edge[own]]
    chosen = np.isin(ranks, np.unique(records.rank[own][changed]))
    if chosen.all():
        return np.ones(len(own))
    steps = np.unique(records.step[own], return_inverse=True)[1].ravel()
    count = np.bincount(key * len(ranks) + at, minlength=(int(key.max()) + 1) * len(ranks)).reshape(-1, len(ranks))
    step_of = np.zeros(len(count), np.int64)
    step_of[key] = steps
    factor = as_others(count.astype(float), step_of, chosen)
    return np.where(changed, np.minimum(1.0, factor[key, at]), 1.0)


def as_others(sums: Column, group: Column, chosen: Column) -> Column:
    """Return factors (names x ranks) that give the chosen ranks the median of the others' sums, by name.

    Names that a chosen rank has and most others have not, or the other way round, count together in each group (the
    step and kind of work): kernels for other shapes have other names.
    """
    usual = np.median(sums[:, ~chosen], axis=1)
    factors = np.ones(sums.shape)
    for rank in np.flatnonzero(chosen).tolist():
        own = sums[:, rank]
        only_here, only_there = (own > 0) & (usual == 0), (own == 0) & (usual > 0)
        size = int(group.max(initial=-1)) + 1
        here, there = (
            np.bincount(group[each], values[each], size) for each, values in ((only_here, own), (only_there, usual))
        )
        factors[:, rank] = np.where(only_here, (there / np.maximum(here, 1e-9))[group], usual / np.maximum(own, 1e-9))
    return factors


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
