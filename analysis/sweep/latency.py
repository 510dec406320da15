"""Measures how long the answer to a batch takes, over batch sizes: latency against throughput, and that curve's knee.

Input: `Measured` points of `mode=inference`, whose steps are latencies. Output: one row per point. Pure functions.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.core.units import percentiles
from rankscope.analysis.sweep.job_names import names
from rankscope.analysis.sweep.scaling import Measured, interval


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """One batch size of one curve. A percentile is null if too few answers were timed."""

    id: str
    curve: str  # the settings in which the curves of a sweep differ
    batch: int
    answers: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    p50_interval: tuple[float, float] | None
    samples_per_s: float  # with one batch after another: batch / mean latency
    knee: bool = False


def curves(points: Sequence[Measured]) -> list[Latency]:
    """Return one row per point: the curves in the points' order, each sorted by batch, with its knee marked."""
    jobs: list[Any] = []
    for point in points:
        if point.job not in jobs:
            jobs.append(point.job)
    rows = []
    for job, name in zip(jobs, names(jobs), strict=True):
        same = sorted((point for point in points if point.job == job), key=lambda point: point.rank_batch)
        found = [_row(point, name) for point in same]
        at = knee([(row.p50_ms or 0.0, row.samples_per_s) for row in found])
        rows += [msgspec.structs.replace(row, knee=index == at) for index, row in enumerate(found)]
    return rows


def knee(curve: Sequence[tuple[float, float]]) -> int | None:
    """Return the index of the knee of (latency, throughput): the point farthest above the chord of the curve.

    Both axes are first scaled to 0..1, as in Kneedle (Satopaa et al., "Finding a Kneedle in a Haystack", 2011).
    None if no point is above the chord. A knee needs three points, and throughput that grows with latency.
    """
    if len(curve) < 3:
        return None
    latency, throughput = np.array(curve, float).T
    spans = latency[-1] - latency[0], throughput[-1] - throughput[0]
    if min(spans) <= 0:
        return None
    above = (throughput - throughput[0]) / spans[1] - (latency - latency[0]) / spans[0]
    best = int(np.argmax(above))
    return best if above[best] > 0 else None


def advice(rows: Sequence[Latency]) -> list[str]:
    """Return a line for each curve that has a knee."""
    return [
        f"{row.curve}: the knee is a batch of {row.batch} ({row.p50_ms:.2f} ms, {row.samples_per_s:.1f} samples/s)"
        for row in rows
        if row.knee
    ]


def _row(point: Measured, name: str) -> Latency:
    answers = np.concatenate(point.steps_ms)
    times = percentiles(answers)
    return Latency(
        id=point.id,
        curve=name,
        batch=point.rank_batch,
        answers=len(answers),
        p50_ms=times["p50_ms"],
        p95_ms=times["p95_ms"],
        p99_ms=times["p99_ms"],
        p50_interval=interval(lambda median: median, point.steps_ms),
        samples_per_s=1000 * point.rank_batch / float(answers.mean()),
    )
