"""`rankscope compare A B`: compares two points or two sweeps metric by metric, with intervals, and a gate for CI.

Input: points. Output: rows of metrics with the change from A to B. The bootstrap interval of the ratio of medians tells
whether a change is noise.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.units import PERCENTILES
from rankscope.analysis.sweep.job_names import flattened
from rankscope.analysis.sweep.points import Point
from rankscope.analysis.sweep.scaling import PARTS, ratio_interval

_CONDITION = re.compile(r"\s*(\w+)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*(%?)\s*")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One metric in A and in B. `ratio` is B / A, null if one is unknown or A is 0."""

    point: str
    metric: str
    a: float | None
    b: float | None
    ratio: float | None
    interval: tuple[float, float] | None = None

    @property
    def is_noise(self) -> bool | None:
        """Whether the interval of the ratio contains 1; None without an interval."""
        return None if self.interval is None else self.interval[0] <= 1 <= self.interval[1]


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A condition that fails the comparison: a change in percent (`step_ms > +5%`) or, without %, a value of B."""

    metric: str
    above: bool
    limit: float
    relative: bool

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Read a condition. Raises `AnalysisError`, which says how to write one."""
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise AnalysisError(f"--fail-if {text!r}: write METRIC > +5%, METRIC < -5%, or METRIC > 12.5")
        metric, sign, number, percent = match.groups()
        return cls(metric=metric, above=sign == ">", limit=float(number), relative=percent == "%")

    def broken_by(self, change: Change) -> bool:
        """Return whether a change meets the condition. A relative change that is noise does not."""
        if change.metric != self.metric:
            return False
        if not self.relative:
            value = change.b
        else:
            value = None if change.ratio is None or change.is_noise else (change.ratio - 1) * 100
        return value is not None and (value > self.limit if self.above else value < self.limit)


def changes(a: Point, b: Point) -> list[Change]:
    """Return every metric of two points side by side."""
    before, after = metrics(a), metrics(b)
    found = []
    for name in before:
        x, y = before[name], after[name]
        ratio = y / x if x and y is not None else None
        found.append(Change(point=b.label, metric=name, a=x, b=y, ratio=ratio, interval=_interval(name, a, b)))
    return found


def metrics(point: Point) -> dict[str, float | None]:
    """Return the metrics of a point that can be compared; None if unknown."""
    measured, summary = point.measured, point.summary or {}
    rate = summary.get("throughput") or {}
    parts = (None if measured is None else measured.parts_ms) or {}
    return {
        "step_ms": None if measured is None else measured.step_ms,
        "samples_per_s": None if measured is None else measured.samples_per_s,
        **{f"latency_{name}": (rate.get("latency") or {}).get(name) for name in PERCENTILES},
        "mfu": rate.get("mfu"),
        "memory_peak_bytes": point.memory_peak_bytes,
        "lateness_ms": (summary.get("stragglers") or {}).get("lateness_ms"),
        **{f"{part}_ms": parts.get(part) for part in PARTS},
    }


def _interval(name: str, a: Point, b: Point) -> tuple[float, float] | None:
    if a.measured is None or b.measured is None:
        return None
    if name == "step_ms":
        return ratio_interval(b.measured.steps_ms, a.measured.steps_ms)
    if name == "samples_per_s" and a.measured.global_batch and b.measured.global_batch:
        more = b.measured.global_batch / a.measured.global_batch
        return ratio_interval(a.measured.steps_ms, b.measured.steps_ms, more)
    return None


def pairs(a: Sequence[Point], b: Sequence[Point]) -> tuple[list[tuple[Point, Point]], list[str]]:
    """Pair the points of two sweeps by what was run; return the pairs, and a line for each point without a partner."""
    if len(a) == len(b) == 1:
        return [(a[0], b[0])], []
    theirs = {_identity(point): point for point in b}
    found, alone = [], []
    for point in a:
        partner = theirs.pop(_identity(point), None)
        if partner is None:
            alone.append(f"only in A: {point.label}")
        else:
            found.append((point, partner))
    return found, alone + [f"only in B: {point.label}" for point in theirs.values()]


def _identity(point: Point) -> tuple[Any, ...]:
    config = point.config
    if config is None:
        return tuple(sorted(point.overrides))
    return (
        config.script or config.model.name,
        config.world_size,
        config.rank_batch_size,
        config.gradient_accumulation,
        config.ddp.enabled,
    )


def differences(a: Point, b: Point) -> list[str]:
    """Return the settings in which two points differ, including the device, as lines."""
    if a.config is None or b.config is None:
        return []
    before, after = (flattened(msgspec.to_builtins(point.config)) for point in (a, b))
    before["gpu"], after["gpu"] = a.gpu, b.gpu
    skipped = {"name", "runs_dir", "run_dir"}
    return [
        f"{key}: {before.get(key)} -> {after.get(key)}"
        for key in before
        if key not in skipped and before.get(key) != after.get(key)
    ]
