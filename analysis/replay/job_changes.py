"""Changes of the shape of a job: more or fewer ranks, larger buckets, another network, gradients of one rank reduced.

Input: changes and a graph. Output: the new weights of the edges.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.table import UNKNOWN, Column
from rankscope.analysis.measure.ceilings import Ceilings
from rankscope.analysis.replay.changes import Change, JobChange
from rankscope.analysis.replay.gradients import USUAL_BUCKET, Gradients
from rankscope.analysis.replay.graph import NONE, Graph, Work
from rankscope.conf.contract import bus_factor

_MB = 1 << 20  # of DDP's bucket_cap_mb
_LONGEST_NS = 86_400e9


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a job would be like; None: as recorded."""

    text: str
    ranks: float | None = None
    bucket_cap_mb: float | None = None
    gradient_mb: float | None = None
    busbw_GBs: float | None = None
    alpha_us: float | None = None  # of a collective, whatever its size

    @property
    def gradients(self) -> Gradients | None:
        """The gradients to reduce, if the recording does not reduce them."""
        if self.gradient_mb is None:
            return None
        return Gradients(megabytes=self.gradient_mb, bucket_cap_mb=self.bucket_cap_mb or USUAL_BUCKET)


def job_of(changes: Sequence[Change | JobChange]) -> Job | None:
    """Return what the changes say about the job; None if they say nothing about it."""
    own = [change for change in changes if isinstance(change, JobChange)]
    if not own:
        return None
    keys = [change.key for change in own]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise AnalysisError(f"{twice}: given twice; say it once")
    job = Job(text=" ".join(change.text for change in own), **{change.key: change.value for change in own})
    for key in ("ranks", "bucket_cap_mb", "gradient_mb", "busbw_GBs"):
        if getattr(job, key) == 0:
            raise AnalysisError(f"{key}=0: give a number above 0")
    if job.ranks is not None and not job.ranks.is_integer():
        raise AnalysisError(f"ranks={job.ranks:g}: give a whole number")
    if job.alpha_us is not None and job.busbw_GBs is None:
        raise AnalysisError("alpha_us: say the bandwidth, too: busbw_GBs=300")
    if job.gradient_mb is not None and (job.ranks is None or job.ranks < 2):
        raise AnalysisError("gradient_mb: say for how many ranks: ranks=4")
    return job


def unknown_sizes(graph: Graph, job: Job | None) -> int:
    """Return how many collectives keep their recorded time in another network, because their size is unknown."""
    if job is None or job.busbw_GBs is None:
        return 0
    own = (graph.edges.work == Work.TRANSFER) & (graph.edges.call != NONE) & (graph.edges.bytes == UNKNOWN)
    return len(np.unique(graph.edges.call[own]))


def apply_to_job(graph: Graph, job: Job, weight: Column, ceilings: Ceilings | None) -> Column:
    """Return the weights for this job; `AnalysisError` if the recording cannot tell."""
    rows = np.flatnonzero((graph.edges.work == Work.TRANSFER) & (graph.edges.call != NONE))
    if not len(rows):
        raise AnalysisError(
            f"{job.text}: no collective with known partners was recorded"
            + ("; say what a step of the larger job would reduce: gradient_mb=500 (MB)" if _alone(graph) else "")
        )
    weight = weight.astype(float)
    ranks = _ranks_of(graph, job, rows)
    if job.busbw_GBs is not None:
        weight[rows] = _over_network(graph, job, rows, ranks)
    elif job.gradient_mb is not None:
        weight[rows] = _measured(graph, job, rows, ranks, ceilings)
    elif job.ranks is not None:
        weight[rows] *= _scaled(graph, rows, ranks)
    if job.bucket_cap_mb is not None and job.gradient_mb is None:
        weight = _with_buckets(graph, job.text, job.bucket_cap_mb, weight, rows)
    return weight


def _alone(graph: Graph) -> bool:
    return len(np.unique(graph.records.rank)) == 1


def _ranks_of(graph: Graph, job: Job, rows: Column) -> Column:
    """Return how many ranks each collective would have: groups grow with the job."""
    recorded = len(np.unique(graph.records.rank))
    size = graph.edges.size[rows]
    return size if job.ranks is None else np.maximum(np.rint(size * job.ranks / recorded), 1)


def _scaled(graph: Graph, rows: Column, ranks: Column) -> Column:
    """Return by what each transfer is multiplied, if its algorithm has the same bus bandwidth with other ranks.

    Work outside collectives stays as it is, as in weak scaling.
    """
    factors = np.ones(len(rows))
    for at, (row, later) in enumerate(zip(rows.tolist(), ranks.tolist(), strict=True)):
        kind = graph.names[graph.edges.name[row]]
        before, after = bus_factor(kind, int(graph.edges.size[row])), bus_factor(kind, int(later))
        if before and after is not None:
            factors[at] = after / before
    return factors


def _over_network(graph: Graph, job: Job, rows: Column, ranks: Column) -> Column:
    """Return the transfers (ns) over a network of this bandwidth: a constant, and bytes times bus factor over it."""
    sizes = graph.edges.bytes[rows]
    if (sizes == UNKNOWN).all() or not job.busbw_GBs:
        raise AnalysisError(f"{job.text}: the sizes of the collectives were not recorded, so their time is unknown")
    kinds = [graph.names[code] for code in graph.edges.name[rows].tolist()]
    factors = np.array([bus_factor(kind, int(count)) for kind, count in zip(kinds, ranks.tolist(), strict=True)])
    found = (job.alpha_us or 0.0) * 1e3 + sizes * factors / job.busbw_GBs
    if found.max(initial=0) > _LONGEST_NS:
        raise AnalysisError(f"{job.text}: a collective would take longer than a day; give a faster network")
    return np.where(sizes == UNKNOWN, graph.edges.weight[rows] * _scaled(graph, rows, ranks), found)


def _measured(graph: Graph, job: Job, rows: Column, ranks: Column, ceilings: Ceilings | None) -> Column:
    """Return the transfers (ns) as the node's measured ceilings say; small ones take as long as the smallest one."""
    if ceilings is None or ceilings.latency_us("allreduce", int(ranks[0])) is None:
        raise AnalysisError(
            f"{job.text}: how fast {int(ranks[0])} ranks reduce is unknown; measure it (rankscope ceilings "
            f"world_size={int(ranks[0])}) and give --ceilings FILE, or say it: busbw_GBs=300 alpha_us=30"
        )
    found = {size: _time_us(ceilings, size, int(ranks[0])) for size in np.unique(graph.edges.bytes[rows]).tolist()}
    return np.array([found[size] * 1e3 for size in graph.edges.bytes[rows].tolist()])


def _time_us(ceilings: Ceilings, size: int, ranks: int) -> float:
    measured = ceilings.collectives["allreduce"]
    least, most = measured[0], measured[-1]
    if size > most[0]:
        return most[1] * size / most[0]
    return ceilings.time_us("allreduce", max(size, least[0]), ranks) or least[1]


def _with_buckets(graph: Graph, text: str, cap_mb: float, weight: Column, rows: Column) -> Column:
    """Join consecutive all-reduces of a step to buckets of at most this size; the last one of each does all the work.

    The time of a bucket follows from a line through the recorded ones: a constant and the time per byte.
    """
    edges = graph.edges
    reduces = rows[[graph.names[code] == "allreduce" for code in edges.name[rows].tolist()]]
    reduces = reduces[(edges.bytes[reduces] != UNKNOWN) & np.isin(edges.step[reduces], graph.steps)]
    if not len(reduces):
        raise AnalysisError(f"{text}: no all-reduce of known size was recorded")
    line = _line(edges.bytes[reduces], weight[reduces])
    if line is None:
        raise AnalysisError(f"{text}: all recorded buckets have one size, so how time grows with it is unknown")
    constant, per_byte = line
    cap = cap_mb * _MB
    if cap < edges.bytes[reduces].max():
        raise AnalysisError(
            f"{text}: the job has buckets of {edges.bytes[reduces].max() / _MB:.0f} MB, and when a part of one "
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
