"""Changes to the work of a graph, as a user writes them: `rank1.compute=median`, `loader=instant`, `transfer*0.5`.

Input: the text of a change and a graph. Output: the new weights of its edges.
"""

import re

import msgspec
import numpy as np

from rankscope.analysis.core import group_by, rank_list
from rankscope.analysis.core.collective_kinds import FEEDING
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.table import Column
from rankscope.analysis.replay.graph import NEVER, NONE, Graph, Work
from rankscope.analysis.replay.surplus import as_others, without_launches

_TARGETS: dict[str, tuple[Work, ...]] = {
    "compute": (Work.COMPUTE,),
    "copy": (Work.COPY, Work.MEMORY),
    "transfer": (Work.TRANSFER, Work.COMMUNICATION),
    "loader": (Work.LOADER,),
    "host": (Work.HOST, Work.MEMORY),
    "launch": (Work.LAUNCH, Work.LATENCY),
    "sync": (Work.SYNC,),
}
_FORM = re.compile(
    r"(?:ranks?(?P<ranks>\d+(?:[-,]\d+)*)\.)?(?P<what>[a-z]+|kernel:.+?)"
    r"(?P<how>=median|=mean|=instant|\*\d+(?:\.\d+)?|\+\d+(?:\.\d+)?(?:ms)?)$"
)
_JOB = re.compile(r"(?P<key>ranks|bucket_cap_mb|gradient_mb|busbw_GBs|alpha_us)=(?P<value>\d+(?:\.\d+)?)$")
EXAMPLES = (
    "rank1.compute=median, loader=instant, transfer*0.5, host*0.8, kernel:REGEX*0.5, bucket_cap_mb=50, ranks=8, "
    "busbw_GBs=40, gradient_mb=500"
)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the work of some edges."""

    text: str
    ranks: tuple[int, ...] | None  # None: all
    works: tuple[Work, ...]
    kernel: str | None  # a regular expression: only records with such a name
    factor: float | None = None  # None: as other ranks, see `even`
    even: bool = False  # the mean of all ranks; otherwise the median of the other ranks, by name
    added_ms: float = 0.0  # per step and rank


class JobChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the job's shape: ranks, buckets, network, or all-reduces that one rank alone does not have."""

    text: str
    key: str
    value: float


def parse(text: str) -> Change | JobChange:
    """Read a change; raises `AnalysisError` with the forms that exist."""
    job = _JOB.match(text)
    if job:
        return JobChange(text=text, key=job["key"], value=float(job["value"]))
    match = _FORM.match(text)
    what = match["what"] if match else ""
    if match is None or not (what in _TARGETS or what.startswith("kernel:")):
        raise AnalysisError(f"{text!r}: not a change; write for example {EXAMPLES}")
    kernel = what.partition(":")[2] or None
    try:
        re.compile(kernel or "")
    except re.error as error:
        raise AnalysisError(f"{text!r}: not a regular expression: {error}") from None
    how = match["how"]
    works = _TARGETS.get(what, (Work.COMPUTE, Work.COPY, Work.TRANSFER, Work.COMMUNICATION))
    factor = None if how in ("=median", "=mean") else 0.0 if how == "=instant" else 1.0
    if how.startswith("*"):
        factor = float(how[1:])
    added = float(how[1:].removesuffix("ms")) if how.startswith("+") else 0.0
    return Change(
        text=text, ranks=_ranks(match["ranks"]), works=works, kernel=kernel, factor=factor, even=how == "=mean",
        added_ms=added,
    )  # fmt: skip


def _ranks(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(sorted(rank_list.parse(text)))
    except ValueError as error:
        raise AnalysisError(str(error)) from None


def apply(graph: Graph, change: Change, weight: Column) -> Column:
    """Return the weights after a change; `AnalysisError` if it concerns nothing that was recorded."""
    edges = graph.edges
    same = np.isin(edges.work, change.works)
    if change.kernel is not None:
        matches = np.array([re.search(change.kernel, name) is not None for name in graph.names] + [False])
        same &= matches[edges.name]
    rows = same if change.ranks is None else same & np.isin(edges.rank, change.ranks)
    if not rows.any():
        raise AnalysisError(f"{change.text}: no such work was recorded")
    gone = weight <= -NEVER // 2  # waits that a change before this one has removed
    weight = np.where(gone, 0.0, weight)
    result = weight.copy()
    if change.factor is not None:
        result[rows] *= np.where(result[rows] > 0, change.factor, 1)  # below 0: idle time that a change removed
    elif change.even:
        result[rows] *= _to_mean(graph, rows, weight)
    else:
        result[rows] = _medians(graph, rows, same, weight)
        result = without_launches(graph, rows, same, result)
    nothing_left = change.factor == 0 or ((result == 0) & (weight > 0))
    result[gone | (rows & _waits(graph) & nothing_left)] = -NEVER
    return _added(graph, rows, result, change.added_ms)


def _waits(graph: Graph) -> Column:
    """Return which edges let the host wait for the device. Without the work that it waits for it does not wait."""
    of_device = np.concatenate([graph.records.start, graph.records.end])
    waits = np.isin(graph.edges.work, (Work.SYNC, Work.COPY)) & np.isin(graph.edges.source, of_device)
    own = graph.records.edge
    waits[own[own != NONE]] = False
    return np.asarray(waits)


def _added(graph: Graph, rows: Column, weight: Column, added_ms: float) -> Column:
    """Add time to the longest of the chosen edges of each rank and step."""
    if not added_ms:
        return weight
    chosen = np.flatnonzero(rows & np.isin(graph.edges.step, graph.steps))
    order = chosen[np.lexsort([-weight[chosen], graph.edges.rank[chosen], graph.edges.step[chosen]])]
    keys = np.stack([graph.edges.step[order], graph.edges.rank[order]], axis=1)
    _, first = np.unique(keys, axis=0, return_index=True)
    weight[order[first]] += added_ms * 1e6
    return weight


def _to_mean(graph: Graph, rows: Column, weight: Column) -> Column:
    """Return the factor of each chosen edge with which its rank's sum becomes the mean of these ranks.

    The sums are those of a step. If ranks wait for each other within it, for data that the next layer computes with,
    they are those between two such collectives.
    """
    step = np.unique(graph.edges.step[rows], return_inverse=True)[1].ravel()
    ranks, rank = np.unique(graph.edges.rank[rows], return_inverse=True)
    for place in (_place(graph, rows), np.zeros_like(step)):
        key = np.unique(np.stack([step, place]), axis=1, return_inverse=True)[1].ravel()
        count = (int(key.max()) + 1) * len(ranks)
        sums = np.bincount(key * len(ranks) + rank.ravel(), np.maximum(weight[rows], 0), count)
        sums = sums.reshape(-1, len(ranks))
        if (sums > 0).all():
            break  # otherwise a rank without work in a place could not get its part of it
    return np.asarray((sums.mean(axis=1, keepdims=True) / np.maximum(sums, 1))[key, rank.ravel()])


def _place(graph: Graph, rows: Column) -> Column:
    """Return how many collectives that the next layer waits for come before each chosen edge on its rank.

    0 if the ranks have different numbers of them.
    """
    edges = graph.edges
    feeding = np.array([name in FEEDING for name in graph.names] + [False])
    collective = (edges.work == Work.TRANSFER) & feeding[edges.name]
    found = np.zeros(int(rows.sum()), np.int64)
    chosen = np.flatnonzero(rows)
    ends = {}
    for rank in np.unique(edges.rank[chosen]).tolist():
        own = edges.rank[chosen] == rank
        ends[rank] = np.sort(graph.time[edges.target[collective & (edges.rank == rank)]])
        found[own] = np.searchsorted(ends[rank], graph.time[edges.source[chosen[own]]], "right")
    return found if len({len(each) for each in ends.values()}) == 1 else np.zeros_like(found)


def _medians(graph: Graph, rows: Column, same: Column, weight: Column) -> Column:
    """Return the chosen edges' work, scaled so that each name's sum in a step is the median of the other ranks'."""
    edges = graph.edges
    keys, key = np.unique(np.stack([edges.step, edges.work, edges.name], axis=1)[same], axis=0, return_inverse=True)
    of_edge = np.full(len(edges), NONE)
    of_edge[same] = key.ravel()
    ranks = np.unique(edges.rank[edges.rank != NONE])
    at = group_by.of_keys(edges.rank, ranks)
    sums = np.bincount((of_edge * len(ranks) + at)[same], np.maximum(weight[same], 0), len(keys) * len(ranks))
    chosen = np.isin(ranks, np.unique(edges.rank[rows]))
    if chosen.all():
        raise AnalysisError("the median of the other ranks is unknown: there is no other rank; name some with rankN.")
    group = np.unique(keys[:, :2], axis=0, return_inverse=True)[1].ravel()
    factors = as_others(sums.reshape(len(keys), -1), group, chosen)
    return np.asarray(weight[rows] * factors[of_edge[rows], at[rows]])
