"""What changes would bring: the replayed step before and after them, scaled to the job without a profiler.

Input: a measured recording, the plain step if it is known, and changes. Output: `Prediction`.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.intervals import measure, union
from rankscope.analysis.core.table import Column
from rankscope.analysis.measure.ceilings import Ceilings
from rankscope.analysis.measure.recording import Recording
from rankscope.analysis.replay import contention
from rankscope.analysis.replay.build import build
from rankscope.analysis.replay.changes import Change, apply, parse
from rankscope.analysis.replay.critical_path import Share, path, shares, slack
from rankscope.analysis.replay.gradients import Gradients
from rankscope.analysis.replay.graph import Graph, Work
from rankscope.analysis.replay.job_changes import Job, apply_to_job, job_of, unknown_sizes

_NS_PER_MS = 1e6
_SAME = 0.03  # a traced step this close to the plain one differs by chance or by other than the host
_HALVINGS = 12
_ROUGH_HALVINGS = 7  # find a share to 1 %
_OF_THREAD = (Work.HOST, Work.LAUNCH, Work.LOADER, Work.MEMORY)
_HOST_DECIDES = 0.2  # of the critical path
_WRONG_BY = 0.03  # see docs/whatif.md: by how much predictions missed measured steps
_T = 2.0


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The step with and without changes; times in ms per step."""

    changes: list[str]
    step_ms: float  # the plain step, otherwise the traced one
    plain: bool  # whether `step_ms` was measured without a profiler
    traced_ms: float
    replayed_ms: float  # the traced step from the recorded work only, without idle time that nothing explains
    host_factor: float | None  # by which the host's work was scaled so that the replay gives the plain step
    contention: float  # by what share compute is slower beside communication
    predicted_ms: float
    low_ms: float
    high_ms: float
    before: list[Share]  # of the critical path
    after: list[Share]
    slack: list[Share]  # by how much a single part of each work can grow before the steps do, the least first
    notes: list[str]


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """A graph with the work of the job as it runs without a profiler."""

    graph: Graph
    undisturbed: Column  # ns: the work of each edge, compute as if nothing communicated beside it
    fast_host: Column | None  # ns: the same with the least work of the host that gives the plain step; None: unknown
    slow: float
    host_factor: float | None
    as_plain: bool  # whether the replayed step is as long as the plain one
    notes: list[str]

    def run(
        self,
        changes: Sequence[Change] = (),
        job: Job | None = None,
        ceilings: Ceilings | None = None,
        *,
        fast_host: bool = False,
    ) -> tuple[Graph, Column, Column]:
        """Return the graph, the times and the weights in another job, after changes.

        `fast_host`: with the least work of the host that gives the plain step.
        """
        weight = self.fast_host if fast_host and self.fast_host is not None else self.undisturbed
        if job is not None:
            weight = apply_to_job(self.graph, job, weight, ceilings)
        for change in changes:
            weight = apply(self.graph, change, weight)
        times, weight = contention.replay(self.graph, weight, self.slow)
        return self.graph, times, weight

    def only_removes(self, changes: Sequence[Change]) -> bool:
        """Return whether no work becomes longer by the changes."""
        weight = self.undisturbed
        for change in changes:
            weight = apply(self.graph, change, weight)
        return bool((weight <= self.undisturbed).all())


def replay(recording: Recording, plain_ms: float | None = None, gradients: Gradients | None = None) -> Replayed:
    """Build the graph and scale the host's work so that the replayed step is the plain one, if that is shorter."""
    graph = build(recording, gradients)
    slow = contention.slowdown(graph)
    weight = contention.undisturbed(graph, slow)
    factor, notes = None, list(graph.reasons)
    traced = graph.step_ns(graph.time) / _NS_PER_MS
    as_plain = plain_ms is not None and abs(traced / plain_ms - 1) <= _SAME
    if plain_ms is not None and traced > plain_ms * (1 + _SAME):
        factor = _largest_factor(graph, plain_ms)
        as_plain = factor is not None
        if factor is None:
            notes.append("less work on the host does not explain why the plain step is shorter: only ratios hold")
    if factor is not None:
        weight = np.where(_of_host(graph), weight * factor, weight)
    fast_host = None
    if as_plain and plain_ms is not None:
        fast_host = weight - _spare(graph, factor or 1.0, min(plain_ms, traced) * (1 - _SAME))
    return Replayed(
        graph=graph,
        undisturbed=weight,
        fast_host=fast_host,
        slow=slow,
        host_factor=factor,
        as_plain=as_plain,
        notes=notes,
    )


def predict(recording: Recording, changes: Sequence[str], plain_ms: float | None = None) -> Prediction:
    """Return what the changes would bring, or without changes the critical path as it is.

    Raises `AnalysisError` if there are no steps to replay, or if a change cannot be read or concerns nothing recorded.
    """
    parsed = [parse(text) for text in changes]
    wanted, job = [change for change in parsed if isinstance(change, Change)], job_of(parsed)
    replayed = replay(recording, plain_ms, None if job is None else job.gradients)
    graph, times, weight = replayed.run()
    _, after, changed = replayed.run(wanted, job, recording.ceilings)
    traced = graph.step_ns(graph.time) / _NS_PER_MS
    measured = traced if plain_ms is None else plain_ms
    predicted = measured * graph.step_ns(after) / graph.step_ns(times)
    if job is None and replayed.only_removes(wanted):
        # Less work makes no job slower. It may seem so, because the work before the first step becomes shorter, too.
        predicted = min(predicted, measured)
    notes = list(replayed.notes)
    shares_after = shares(graph, path(graph, after, changed), by_rank=True)
    shortest = predicted
    if changes and recording.on_gpu and _host_share(shares_after) > _HOST_DECIDES:
        shortest = min(predicted, _predicted_with_fast_host(replayed, wanted, job, recording.ceilings, measured))
        if replayed.fast_host is None or shortest < predicted * (1 - _WRONG_BY):
            notes.append("then the host decides; its recorded work contains the profiler's, so the step may be shorter")
    if unsized := unknown_sizes(graph, job):
        notes.append(f"{unsized} collectives keep their recorded time, because their size was not recorded")
    spread = min(1.0, max(_standard_error(graph, times, after) * _T, _WRONG_BY)) if changes else 0.0
    return Prediction(
        changes=list(changes),
        step_ms=measured,
        plain=plain_ms is not None,
        traced_ms=traced,
        replayed_ms=graph.explained_ns() / _NS_PER_MS,
        host_factor=replayed.host_factor,
        contention=replayed.slow,
        predicted_ms=predicted,
        low_ms=shortest * (1 - spread),
        high_ms=predicted * (1 + spread),
        before=_scaled(shares(graph, path(graph, times, weight), by_rank=True), measured),
        after=_scaled(shares_after, predicted),
        slack=slack(graph, times, weight),
        notes=notes,
    )


def _predicted_with_fast_host(
    replayed: Replayed, changes: Sequence[Change], job: Job | None, ceilings: Ceilings | None, measured_ms: float
) -> float:
    """Return the predicted step (ms) if the host has as little work as the plain step allows."""
    graph, before, _ = replayed.run(fast_host=True)
    _, after, _ = replayed.run(changes, job, ceilings, fast_host=True)
    return measured_ms * graph.step_ns(after) / graph.step_ns(before)


def uses_ceilings(changes: Sequence[str]) -> bool:
    """Return whether the changes add collectives whose time the node's measured ceilings say."""
    job = job_of([parse(text) for text in changes])
    return job is not None and job.gradient_mb is not None and job.busbw_GBs is None


def _host_share(found: list[Share]) -> float:
    """Return the share of the critical path that is the host's work."""
    host = sum(share.ms for share in found if share.work in ("host", "launch"))
    return host / max(sum(share.ms for share in found), 1e-9)


def _scaled(found: list[Share], step_ms: float) -> list[Share]:
    """Return the shares so that they sum to the step."""
    total = sum(share.ms for share in found)
    return [msgspec.structs.replace(share, ms=share.ms * step_ms / total) for share in found] if total else found


def _of_host(graph: Graph) -> Column:
    return np.isin(graph.edges.work, [Work.HOST, Work.LAUNCH])


def _largest_factor(graph: Graph, plain_ms: float) -> float | None:
    """Return the largest factor (0 to 1) of the host's work with which the replayed step is as long as the plain one.

    None if the replayed step is longer with any factor: then something else is slower under the profiler.
    """
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _with_host(graph, middle) > plain_ms else (middle, high)
    return None if low == 0.0 else (low + high) / 2


def _spare(graph: Graph, factor: float, step_ms: float) -> Column:
    """Return how much time (ns) each edge of the host can lose while the replayed step stays at least this long.

    Only time beside a busy device can go: it may be the profiler's, or a wait in a call whose name does not say so.
    `factor`: of the host's work, from `_largest_factor`.
    """
    weight = np.where(_of_host(graph), graph.edges.weight * factor, graph.edges.weight)
    beside = _beside_device(graph) * weight

    def lasts(kept: float) -> bool:
        replayed = graph.replay(np.rint(weight - (1 - kept) * beside).astype(np.int64))
        return graph.step_ns(replayed) / _NS_PER_MS >= step_ms

    if lasts(0.0):
        return np.asarray(beside)
    low, high = 0.0, 1.0
    for _ in range(_ROUGH_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if lasts(middle) else (middle, high)
    return np.asarray((1 - high) * beside)


def _beside_device(graph: Graph) -> Column:
    """Return for each edge of a thread the share of its time in which its device is busy; 0 for other edges."""
    edges, records = graph.edges, graph.records
    start, end = graph.time[edges.source], graph.time[edges.target]
    share = np.zeros(len(edges))
    of_thread = np.isin(edges.work, _OF_THREAD) & (end > start)
    for rank, own in group_by.positions(records.rank).items():
        busy = union(graph.time[records.start[own]], graph.time[records.end[own]])
        rows = np.flatnonzero(of_thread & (edges.rank == rank))
        share[rows] = measure(busy, start[rows], end[rows]) / (end[rows] - start[rows])
    return share


def _with_host(graph: Graph, factor: float) -> float:
    """Return the replayed step (ms) with so many times the host's work."""
    weight = np.where(_of_host(graph), np.rint(graph.edges.weight * factor), graph.edges.weight).astype(np.int64)
    return graph.step_ns(graph.replay(weight)) / _NS_PER_MS


def _standard_error(graph: Graph, times: Column, after: Column) -> float:
    """Return the standard error of the ratio of both steps, from step to step, as a share of it; at most 1."""
    before, now = np.diff(graph.boundaries(times)), np.diff(graph.boundaries(after))
    if len(before) < 2 or (before <= 0).any() or now.sum() <= 0:
        return 0.0
    ratio = now / before
    return min(1.0, float(np.std(ratio, ddof=1) / np.sqrt(len(before)) / ratio.mean()))
