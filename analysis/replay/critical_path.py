"""The critical path over all ranks: the work that decides when the last step ends, and how much the rest could grow.

The path goes back from the end of the last step that counts, always to what decided, until the first step began. Its
parts sum to these steps.
"""

import msgspec
import numpy as np

from rankscope.analysis.core.intervals import union
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.table import Column, Table
from rankscope.analysis.measure.recording import Recording
from rankscope.analysis.replay.build import build
from rankscope.analysis.replay.graph import NEVER, NONE, Graph, Work

_NS_PER_MS = 1e6
_MOST_RANKS = 64


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the critical path; times in ns from the first point of the graph, or on the common clock."""

    start: int
    end: int
    rank: int
    work: Work
    name: str | None


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of work on one rank contributes to the critical path. `rank` is None for a sum over ranks."""

    work: str
    rank: int | None
    ms: float  # per step


def path(graph: Graph, times: Column, weight: Column) -> list[Stretch]:
    """Return the critical path in order of time, with these times and weights of a replay."""
    bounds = graph.boundaries(times)
    began, ended = int(bounds[0]), int(bounds[-1])
    deciding = graph.binding(times, weight).tolist()
    edges = graph.edges
    point = int(np.flatnonzero((graph.ends > 0) & (times == ended))[0])
    found: list[Stretch] = []
    while times[point] > began:
        edge = deciding[point]
        if edge == NONE:  # the recording begins here
            found.append(_stretch(graph, began, int(times[point]), int(graph.rank[point]), Work.UNEXPLAINED, NONE))
            break
        source = int(edges.source[edge])
        rank, delay = int(edges.rank[edge]), int(edges.delay[edge])
        start, done = max(int(times[source]), began), int(times[point])
        waited = max(start, done - delay)
        if waited < done:
            found.append(_stretch(graph, waited, done, rank, Work.UNEXPLAINED, NONE))
        if start < waited:
            found.append(_stretch(graph, start, waited, rank, Work(int(edges.work[edge])), int(edges.name[edge])))
        point = source
    return found[::-1]


def recorded_path(recording: Recording) -> list[Stretch]:
    """Return the critical path as recorded, on the common clock.

    It is empty if there is nothing to replay, or with many ranks, of which a timeline has only a density.
    """
    if len(recording.ranks) > _MOST_RANKS:
        return []
    try:
        graph = build(recording)
    except AnalysisError:
        return []
    parts = path(graph, graph.time, graph.edges.weight)
    moved = msgspec.structs.replace
    return [moved(part, start=part.start + graph.origin, end=part.end + graph.origin) for part in parts]


def by_rank(stretches: list[Stretch]) -> dict[int, Table]:
    """Return when each rank is on the path: start and end of its stretches, neighbours joined."""
    found = {}
    for rank in sorted({part.rank for part in stretches}):
        own = [part for part in stretches if part.rank == rank]
        start, end = union(np.array([part.start for part in own]), np.array([part.end for part in own]))
        found[rank] = Table({"start": start, "end": end})
    return found


def _stretch(graph: Graph, start: int, end: int, rank: int, work: Work, name: int) -> Stretch:
    return Stretch(start=start, end=end, rank=rank, work=work, name=graph.names[name] if name != NONE else None)


def shares(graph: Graph, stretches: list[Stretch], *, by_rank: bool) -> list[Share]:
    """Return the sums of a path per step, the largest first."""
    sums: dict[tuple[str, int | None], int] = {}
    for part in stretches:
        key = (part.work.name.lower(), part.rank if by_rank else None)
        sums[key] = sums.get(key, 0) + part.end - part.start
    per_step = len(graph.steps) * _NS_PER_MS
    rows = [Share(work=work, rank=rank, ms=total / per_step) for (work, rank), total in sums.items() if total]
    return sorted(rows, key=lambda row: -row.ms)


def slack(graph: Graph, times: Column, weight: Column) -> list[Share]:
    """Return for each kind of work and rank by how much any single part of it can grow before the steps do (ms).

    Work that the steps do not depend on at all has no row.
    """
    free = graph.slack(times, weight)
    found: list[Share] = []
    counted = np.isin(graph.edges.step, graph.steps) & (weight > 0)
    for work in Work:
        rows = np.flatnonzero(counted & (graph.edges.work == work))
        for rank in np.unique(graph.edges.rank[rows]).tolist():
            least = int(free[rows[graph.edges.rank[rows] == rank]].min())
            if least < NEVER:
                found.append(Share(work=work.name.lower(), rank=rank, ms=max(least, 0) / _NS_PER_MS))
    return sorted(found, key=lambda row: row.ms)
