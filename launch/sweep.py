"""`rankscope run -m`: many points, each in its own run folder, and a scaling report at the end.

Points run here, one after another, or as SLURM jobs (`hydra/launcher=slurm`). Every point is validated before the first
one starts, and refused if this machine cannot run it. The record keeps the cause of a failed point, and the sweep goes
on. `--resume SWEEP` runs the missing and failed points.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from rankscope.conf import ConfigError, RunConfig, RunDir
from rankscope.conf.contract import OK, PARTIAL
from rankscope.conf.sections import SlurmConfig
from rankscope.conf.sweep_dir import PointRecord, SweepDir, SweepRecord
from rankscope.launch import slurm_job, submitted
from rankscope.launch.configure.compose import compose, submission
from rankscope.launch.configure.model_size import with_size
from rankscope.launch.configure.preflight import refuse, refuse_submission, shared_cores
from rankscope.launch.configure.sweep_points import plan
from rankscope.launch.pace import Pace, announcement
from rankscope.launch.run.failure import Failure
from rankscope.launch.run.record import analyse, record, status_of
from rankscope.launch.system import slurm
from rankscope.launch.system.processes import MARK, Interrupted, Stop, end, mark, start
from rankscope.launch.system.terminal import say
from rankscope.launch.system.torch_facts import TorchFacts, torch_facts

_REPORT = ("-m", "rankscope.conf.cli", "report")
_GRACE_S = 5.0


def run_sweep(arguments: Sequence[str], stop: Stop) -> int:
    """Run a new sweep; returns 0 if every point completed, otherwise 3."""
    launcher, overrides = submission(arguments)
    points = plan(overrides, cores=None if launcher is None else _cores(launcher, overrides))
    facts = torch_facts() if launcher is None else None
    configs = _sized(points, facts)
    way = _way(launcher, facts, configs)
    say(f"sweep: {announcement(configs)}")
    first = compose(points[-1].overrides)
    sweep = SweepDir.claim(Path(first.runs_dir), f"{first.name}-sweep", datetime.now().astimezone())
    return _run(sweep, SweepRecord(overrides=list(arguments), points=points), way, stop)


def resume(path: Path, stop: Stop) -> int:
    """Run the missing and failed points of a sweep; returns 0 if every point is completed then, otherwise 3."""
    sweep = SweepDir(path)
    sweep_record = sweep.read()
    launcher, _ = submission(sweep_record.overrides)
    open_points = [point for point in sweep_record.points if point.status != "completed"]
    facts = torch_facts() if launcher is None else None
    way = _way(launcher, facts, [compose(point.overrides) for point in open_points])
    return _run(sweep, sweep_record, way, stop)


def _cores(launcher: SlurmConfig, overrides: Sequence[str]) -> int:
    """Return the number of cores that a job has on its node; the cores of this machine do not matter."""
    if launcher.cpus_per_task is None and not any(item.startswith("threads=") for item in overrides):
        raise ConfigError(
            "hydra.launcher.cpus_per_task=null: a rank needs the same number of CPU threads in every point of a sweep; "
            "set the number of CPUs of a job, or set threads"
        )
    return launcher.cpus_per_task or 1


def _sized(points: Sequence[PointRecord], facts: TorchFacts | None) -> list[RunConfig]:
    """Name the size of the model in every point that leaves it to the device; returns the points' configurations."""
    configs = [compose(point.overrides) for point in points]
    sized = [with_size(config, facts, configs) for config in configs]
    for point, before, after in zip(points, configs, sized, strict=True):
        if after.model.size != before.model.size:
            point.overrides.append(f"model.size={after.model.size}")
    return sized


def _way(launcher: SlurmConfig | None, facts: TorchFacts | None, configs: Sequence[RunConfig]) -> "_Here | _Jobs":
    """Return the way to run points, here or as jobs; raises `ConfigError` if one of them cannot run."""
    if launcher is not None or facts is None:
        for config in configs:
            refuse_submission(config)
        return _Jobs(launcher or SlurmConfig())
    for config in configs:
        if config.launch.nnodes > 1:
            raise ConfigError(
                f"launch.nnodes={config.launch.nnodes}: a sweep runs its points on this node; "
                "hydra/launcher=slurm gives each point its nodes"
            )
        refuse(config, facts)
    most = max(configs, key=lambda config: config.world_size, default=None)
    if most is not None and (shared := shared_cores(most, facts)) is not None:
        say(f"sweep: {shared}")
    return _Here(facts)


def _run(sweep: SweepDir, done: SweepRecord, way: "_Here | _Jobs", stop: Stop) -> int:
    done.status, done.start = "running", done.start or datetime.now(UTC).isoformat()
    sweep.write(done)
    try:
        way.run(sweep, done, stop)
    except BaseException:
        done.status = "interrupted"
        say(f"sweep: interrupted; to go on: {_resume(sweep)}")
        raise
    else:
        done.status = "completed" if all(point.status == "completed" for point in done.points) else "failed"
    finally:
        done.end = datetime.now(UTC).isoformat()
        sweep.write(done)
    _report(sweep, stop)
    if done.status != "completed":
        say(f"sweep: to run the failed points again: {_resume(sweep)}")
    return OK if done.status == "completed" else PARTIAL


def _told(point: PointRecord) -> str:
    """Return a point's overrides, each key once: of a baseline, the values that it was added with."""
    last = {item.partition("=")[0]: item for item in point.overrides}
    return " ".join(last.values()) + (" (baseline)" if point.baseline else "")


def _resume(sweep: SweepDir) -> str:
    return shlex.join(["rankscope", "run", "--resume", str(sweep.path)])


class _Here:
    """Points on this machine, one after another."""

    def __init__(self, facts: TorchFacts) -> None:
        self._facts = facts

    def run(self, sweep: SweepDir, done: SweepRecord, stop: Stop) -> None:
        """Run every point that is not completed, and write its status."""
        pace = Pace(sum(point.status != "completed" for point in done.points))
        for number, point in enumerate(done.points, start=1):
            if point.status != "completed":
                say(f"point {number} of {len(done.points)}: {_told(point)}")
                self._point(sweep, done, point, stop)
                say(f"point {number} of {len(done.points)}: {point.status}; {pace.ended()}")

    def _point(self, sweep: SweepDir, done: SweepRecord, point: PointRecord, stop: Stop) -> None:
        config = _begin(sweep, point)
        point.status = "running"
        sweep.write(done)
        try:
            recorded = record(config, point.overrides, self._facts, stop)
        except Interrupted:
            point.status = "interrupted"
            raise
        _note(point, recorded.failure)
        if recorded.failure is None:
            analyse(recorded.run_dir, stop, quiet=True)
        sweep.write(done)


class _Jobs:
    """Points as SLURM jobs: one array for all points that need the same resources, one array after another."""

    def __init__(self, launcher: SlurmConfig) -> None:
        self._launcher = launcher
        notice = slurm.require()
        if notice is not None:
            say(notice)

    def run(self, sweep: SweepDir, done: SweepRecord, stop: Stop) -> None:
        """Submit every point that is not completed, and wait for all jobs, also for those of an earlier try."""
        waiting = [point for point in done.points if point.status in ("submitted", "running") and point.job is not None]
        new = [point for point in done.points if point.status != "completed" and point not in waiting]
        self._submit(sweep, new)
        sweep.write(done)
        jobs = {point.job: point for point in [*waiting, *new] if point.job is not None}
        try:
            for job, state in slurm.watch(jobs, stop):
                say(submitted.progress(job, state))
                self._changed(sweep, jobs[job], state)
                sweep.write(done)
        except Interrupted as interrupted:
            left = {job: point for job, point in jobs.items() if point.status in ("submitted", "running")}
            for point in left.values():
                point.status = "interrupted"
            submitted.withdraw({job: _run_dir(sweep, point) for job, point in left.items()}, interrupted)
            raise

    def _submit(self, sweep: SweepDir, points: Sequence[PointRecord]) -> None:
        groups: dict[slurm.Shape, list[tuple[PointRecord, list[str]]]] = {}
        for point in points:
            config = _begin(sweep, point)
            run_dir = submitted.prepare(config, point.overrides, _run_dir(sweep, point).path)
            command = [*point.overrides, f"name={config.name}", submitted.at(run_dir)]
            groups.setdefault(submitted.shape_of(config), []).append((point, command))
        after = None
        for shape, members in groups.items():
            name = f"rankscope-{sweep.path.name}"
            commands = [command for _, command in members]
            jobs = slurm.submit(self._launcher, sweep.slurm, name, shape, slurm_job.job, commands, after)
            for (point, _), job in zip(members, jobs, strict=True):
                point.job, point.status = job, "submitted"
                say(f"point {point.id}: job {job}: {' '.join(point.overrides)}")
            after = jobs[0].partition("_")[0]

    def _changed(self, sweep: SweepDir, point: PointRecord, state: slurm.JobState) -> None:
        if not state.over:
            point.status = "submitted" if state.state in ("PENDING", "CONFIGURING") else "running"
            return
        assert point.job is not None  # the point was submitted
        _note(point, submitted.settle(_run_dir(sweep, point), point.job, state, sweep.slurm))


def _run_dir(sweep: SweepDir, point: PointRecord) -> RunDir:
    assert point.folder is not None  # _begin has chosen one
    return sweep.point(point.folder)


def _begin(sweep: SweepDir, point: PointRecord) -> RunConfig:
    """Give a point a folder that no earlier try uses; returns its configuration."""
    point.folder, point.failure, point.job = _fresh(sweep, point.id), None, None
    return compose([*point.overrides, f"name=point-{point.id}", submitted.at(_run_dir(sweep, point))])


def _note(point: PointRecord, failure: Failure | None) -> None:
    """Keep how a point ended, and print why it failed."""
    point.status = status_of(failure)
    point.failure = None if failure is None else msgspec.to_builtins(failure)
    if failure is not None:
        say(failure.text())


def _fresh(sweep: SweepDir, point_id: str) -> str:
    """Return a folder name that no earlier try of this point uses."""
    tries = (f"{point_id}-{number}" for number in range(2, 1000))
    names = [point_id, *tries]
    return next(name for name in names if not sweep.point(name).path.exists())


def _report(sweep: SweepDir, stop: Stop) -> None:
    """Start the report as a separate process, which prints its text."""
    command = [sys.executable, *_REPORT, str(sweep.path), "--allow-partial"]
    process = start(command, {**os.environ, MARK: mark(sweep.path)}, stdout=None, stderr=None)
    try:
        status = stop.wait(process)
    finally:
        end(process, sweep.path, _GRACE_S)
    if status:
        say(f"rankscope: no report; try again: rankscope report {sweep.path}")
