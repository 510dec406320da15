"""`rankscope run -m`: many points one after another, each a run folder of its own, and a scaling report at the end.

Every point is validated, and refused if this machine cannot run it, before the first starts. A point that fails stays
visible with its cause, and the sweep goes on. `--resume SWEEP` runs what is missing or failed.
"""

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from rankscope.conf import ConfigError
from rankscope.conf.sweep_dir import PointRecord, SweepDir, SweepRecord
from rankscope.launch.compose import compose
from rankscope.launch.points import plan
from rankscope.launch.preflight import refuse
from rankscope.launch.processes import MARK, Interrupted, Stop, end, mark, start
from rankscope.launch.record import PARTIAL, analyse, record, say
from rankscope.launch.torch_facts import TorchFacts, torch_facts

_REPORT = ("-m", "rankscope.conf.cli", "report")
_GRACE_S = 5.0


def run_sweep(overrides: Sequence[str], stop: Stop) -> int:
    """Run a new sweep; returns 0 when every point completed, else 3."""
    points = plan(overrides)
    facts = torch_facts()
    for point in points:
        config = compose(point.overrides)
        if config.launch.nnodes > 1:
            raise ConfigError("launch.nnodes: a sweep runs its points on one node; run points over several nodes apart")
        refuse(config, facts)
    first = compose(points[-1].overrides)
    sweep = SweepDir.claim(Path(first.runs_dir), f"{first.name}-sweep", datetime.now().astimezone())
    return _run(sweep, SweepRecord(overrides=list(overrides), points=points), facts, stop)


def resume(path: Path, stop: Stop) -> int:
    """Run the points of a sweep that are missing or failed; returns 0 when every point is then completed, else 3."""
    sweep = SweepDir(path)
    sweep_record = sweep.read()
    facts = torch_facts()
    for point in sweep_record.points:
        if point.status != "completed":
            refuse(compose(point.overrides), facts)
    return _run(sweep, sweep_record, facts, stop)


def _run(sweep: SweepDir, done: SweepRecord, facts: TorchFacts, stop: Stop) -> int:
    done.status, done.start = "running", done.start or datetime.now(UTC).isoformat()
    sweep.write(done)
    try:
        for number, point in enumerate(done.points, start=1):
            if point.status != "completed":
                say(f"point {number} of {len(done.points)}: {' '.join(point.overrides)}")
                _run_point(sweep, done, point, facts, stop)
    except BaseException:
        done.status = "interrupted"
        raise
    else:
        done.status = "completed" if all(point.status == "completed" for point in done.points) else "failed"
    finally:
        done.end = datetime.now(UTC).isoformat()
        sweep.write(done)
    _report(sweep, stop)
    return 0 if done.status == "completed" else PARTIAL


def _run_point(sweep: SweepDir, done: SweepRecord, point: PointRecord, facts: TorchFacts, stop: Stop) -> None:
    folder = _fresh(sweep, point.id)
    run_dir = sweep.point(folder).path
    config = compose([*point.overrides, f"name=point-{point.id}", f"run_dir={_quoted(run_dir)}"])
    point.folder, point.status, point.failure = folder, "running", None
    sweep.write(done)
    try:
        recorded = record(config, point.overrides, facts, stop)
    except Interrupted:
        point.status = "interrupted"
        raise
    made, failure = recorded.run_dir, recorded.failure
    point.status = "completed" if failure is None else "failed"
    point.failure = None if failure is None else msgspec.to_builtins(failure)
    if failure is not None:
        say(failure.text())
    else:
        analyse(made, stop, quiet=True)
    sweep.write(done)


def _fresh(sweep: SweepDir, point_id: str) -> str:
    """Return a folder name that no earlier try of this point has."""
    tries = (f"{point_id}-{number}" for number in range(2, 1000))
    names = [point_id, *tries]
    return next(name for name in names if not sweep.point(name).path.exists())


def _quoted(path: Path) -> str:
    """Return a path as a value of Hydra's grammar, whatever characters it holds."""
    text = str(path.absolute()).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


def _report(sweep: SweepDir, stop: Stop) -> None:
    """Start the report by its name; its text goes to our stdout."""
    command = [sys.executable, *_REPORT, str(sweep.path), "--allow-partial"]
    process = start(command, {**os.environ, MARK: mark(sweep.path)}, stdout=None, stderr=None)
    try:
        status = stop.wait(process)
    finally:
        end(process, sweep.path, _GRACE_S)
    if status:
        say(f"rankscope: no report; again with: rankscope report {sweep.path}")


def parse(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return (sweep to resume or None, overrides) of a command line with -m or --resume."""
    rest = [argument for argument in arguments if argument not in ("-m", "--multirun")]
    if "--resume" in rest:
        at = rest.index("--resume")
        if len(rest) != at + 2 or at != 0:
            raise ConfigError("--resume: give the sweep's folder and nothing else; its points are in its sweep.json")
        return Path(rest[1]), []
    return None, rest
