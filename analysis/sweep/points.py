"""Reads the points of a sweep, or single run folders, in the form that scaling and comparison need.

Input: a `SweepDir` or `RunDir` whose points were analysed. Output: `Point`s; a failed one is included, with its cause.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.read import pass_steps
from rankscope.analysis.sweep import job_names
from rankscope.analysis.sweep.scaling import PARTS, Measured, Steps
from rankscope.analysis.verify import plain_pass
from rankscope.conf import ConfigError, RunConfig, RunDir, load_config
from rankscope.conf.plain_text import path_text
from rankscope.conf.sweep_dir import SweepDir
from rankscope.conf.typed_json import Real, read_object

# Keys in which two points of the same job may differ: names, world size, batch (compared separately), and duration.
_NOT_THE_JOB = frozenset(
    {
        "name", "runs_dir", "run_dir", "passes", "repeats", "world_size", "batch_size", "global_batch_size", "steps",
        "warmup_steps", "log_every", "seed", "threads", "ddp", "profile", "launch",
    }
)  # fmt: skip


class _Rank(msgspec.Struct):
    breakdown_ms: dict[str, Real | None]


class _Rate(msgspec.Struct):
    mfu: Real | None = None
    latency: dict[str, Real | None] | None = None


class _Late(msgspec.Struct):
    lateness_ms: Real | None = None
    verdict: str | None = None


# What is used of the point's summary.json, which may be anybody's or of another version.
_SUMMARY: dict[str, Any] = {
    "per_rank": list[_Rank],
    "steps": list[Any],
    "throughput": _Rate | None,
    "stragglers": _Late | None,
    "profiler_overhead": dict[str, Real | None] | None,
}


class Point(msgspec.Struct, kw_only=True):
    """One point: what was run, how it ended, and its numbers (null if it has none)."""

    id: str
    run_dir: RunDir | None
    overrides: list[str]
    baseline: bool
    status: str
    failure: str | None = None
    config: RunConfig | None = None
    rank_batch: int | None = None  # samples of one rank in a step
    gpu: str | None = None
    measured: Measured | None = None
    summary: dict[str, Any] | None = None
    memory_peak_bytes: int | None = None
    job: str | None = None  # distinguishes its job from those reported with it; None if there is only one job

    @property
    def label(self) -> str:
        """The name of this point in reports."""
        if self.config is None:
            return " ".join(self.overrides) or self.id
        ddp = "" if self.config.ddp.enabled else ", no DDP"
        batch = self.config.rank_batch_size if self.config.script is None else self.rank_batch or "?"
        return f"{self.job}, " * bool(self.job) + f"{self.config.world_size} x {batch}{ddp}"


def sweep_points(sweep: SweepDir) -> list[Point]:
    points = []
    for record in sweep.read().points:
        run_dir = None if record.folder is None else sweep.point(record.folder)
        point = Point(
            id=record.id,
            run_dir=run_dir,
            overrides=record.overrides,
            baseline=record.baseline,
            status=record.status,
            failure=_failure(record.failure),
        )
        points.append(_filled(point) if run_dir is not None else point)
    return points


def tell_jobs_apart(points: Sequence[Point]) -> None:
    """Name the jobs of points that are reported together, if there are several jobs."""
    measured = [point for point in points if point.measured is not None]
    names = job_names.names([point.measured.job for point in measured if point.measured is not None])
    for point, name in zip(measured, names, strict=True):
        point.job = name if len(set(names)) > 1 else None


def run_point(run_dir: RunDir) -> Point:
    """Return one run folder as a point. Raises `RunDirError` if it is not a run folder."""
    record = run_dir.read_record()
    overrides = [item for item in record.get("overrides") or [] if not item.startswith("run_dir=")]
    point = Point(
        id=path_text(run_dir.path.resolve().name),
        run_dir=run_dir,
        overrides=overrides,
        baseline=False,
        status=record.get("status", "unknown"),
        failure=_failure(record.get("failure")),
    )
    return _filled(point)


def _failure(failure: dict[str, Any] | None) -> str | None:
    return None if failure is None else f"{failure.get('kind')}: {' '.join(str(failure.get('message')).split())}"


def _filled(point: Point) -> Point:
    run_dir = point.run_dir
    assert run_dir is not None
    run_dir.check_links()
    try:
        point.config = load_config(run_dir.config)
    except ConfigError:
        return point
    try:
        point.summary = read_object(run_dir.analysis / "summary.json", _SUMMARY)
    except (OSError, ValueError):
        point.summary = None
    repeats = pass_steps.read_repeats(run_dir)
    if not repeats or len(repeats[0].ranks) < point.config.world_size:
        return point
    info = repeats[0].info
    point.gpu = next(iter(info.values())).get("device_name")
    peaks = [item.get("memory_peak_bytes") for item in info.values()]
    point.memory_peak_bytes = max((peak for peak in peaks if peak is not None), default=None)
    steps = [found for found in (plain_pass.step_times(repeat) for repeat in repeats) if len(found)]
    samples = plain_pass.samples_per_step(repeats[0], point.config)
    if steps and samples is not None:
        point.rank_batch = round(samples / point.config.world_size)
        point.measured = _measured(point, point.config, steps)
    return point


def _measured(point: Point, config: RunConfig, steps: Steps) -> Measured:
    step_ms = float(np.median([np.median(repeat) for repeat in steps]))
    job = {key: value for key, value in msgspec.to_builtins(config).items() if key not in _NOT_THE_JOB}
    batch = point.rank_batch
    assert batch is not None  # `_filled` has set it
    return Measured(
        id=point.id,
        job=job | {"gpu": point.gpu},
        world_size=config.world_size,
        rank_batch=batch,
        ddp=config.ddp.enabled,
        samples_per_s=1000 * batch * config.world_size / step_ms,
        steps_ms=steps,
        parts_ms=_parts(point.summary),
    )


def _parts(summary: dict[str, Any] | None) -> dict[str, float | None] | None:
    """Return the breakdown of the traced step, mean over ranks (ms); None if the point was not traced."""
    rows = [row["breakdown_ms"] for row in (summary or {}).get("per_rank", [])]
    if not rows:
        return None
    return {
        part: None if any(row.get(part) is None for row in rows) else float(np.mean([row[part] for row in rows]))
        for part in PARTS
    }
