"""Runs as SLURM jobs: makes the folder that a job takes over, and determines how its run ended.

In: overrides of points. Out: the root cause of each run, also in `run.json`. A job runs the point once on each of its
nodes, as `rankscope run` would. If the run was killed or never began, its end is written here from SLURM's states.
"""

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from rankscope.conf import ConfigError, RunConfig, RunDir
from rankscope.conf.run_dir import Status
from rankscope.conf.sections import SlurmConfig
from rankscope.conf.version import VERSION
from rankscope.launch.run.failure import Failure, Kind
from rankscope.launch.run.nodes import Node
from rankscope.launch.run.record import Recorded, finish
from rankscope.launch.slurm_job import job
from rankscope.launch.system import slurm
from rankscope.launch.system.processes import Interrupted, Stop
from rankscope.launch.system.terminal import say

_ITS_OWN = ("COMPLETED", "FAILED")  # states of a job that ended by itself
_KINDS: dict[str, Kind] = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "time_limit",
    "NODE_FAIL": "node_fail",
    "OUT_OF_MEMORY": "oom",
}
_SETTLE_S = 5.0  # how late a shared file system may show what a node wrote
_END_S = 60.0  # how long to wait for cancelled jobs to end


def shape_of(config: RunConfig) -> slurm.Shape:
    """Return the resources that the job of a point needs."""
    per_node = config.world_size // config.launch.nnodes
    return slurm.Shape(nodes=config.launch.nnodes, gpus_per_node=per_node if config.device == "cuda" else None)


def prepare(config: RunConfig, overrides: Sequence[str], exact: Path | None) -> RunDir:
    """Make the run folder with the status `submitted`, and let the job take it over."""
    run_dir = RunDir.claim(Path(config.runs_dir), config.name, datetime.now().astimezone(), exact)
    run_dir.write_record(rankscope=VERSION, status="submitted", overrides=list(overrides), passes={})
    run_dir.hand_over()
    return run_dir


def run_one(launcher: SlurmConfig, config: RunConfig, overrides: Sequence[str], stop: Stop) -> Recorded:
    """Submit one run and wait for it; cancels its job if interrupted."""
    notice = slurm.require()
    if notice is not None:
        say(notice)
    exact = Path(config.run_dir) if config.run_dir is not None else None
    run_dir = prepare(config, overrides, exact)
    command = [*overrides, at(run_dir)]
    try:
        (number,) = slurm.submit(launcher, run_dir.slurm, config.name, shape_of(config), job, [command], after=None)
    except ConfigError as error:
        _close(run_dir, Failure(kind="slurm", message=str(error)))
        raise
    say(f"rankscope: SLURM job {number}: {run_dir.path}")
    failure = None
    try:
        for _, state in slurm.watch([number], stop):
            say(progress(number, state))
            if state.over:
                failure = settle(run_dir, number, state, run_dir.slurm)
    except Interrupted as interrupted:
        withdraw({number: run_dir}, interrupted)
        raise
    return Recorded(run_dir=run_dir, failure=failure, node=Node(run_dir, config, 0, "", ""))


def at(run_dir: RunDir) -> str:
    """Return the override that puts a run into this folder; quotes any character of the path."""
    text = str(run_dir.path.absolute()).replace("\\", "\\\\").replace("'", "\\'")
    return f"run_dir='{text}'"


def progress(job: str, state: slurm.JobState) -> str:
    """Return one line about the state of a job."""
    where = f" on {state.nodes}" if state.nodes else ""
    why = f" ({state.reason})" if state.reason not in ("", "None") else ""
    return f"  job {job}: {state.state}{where}{why}"


def settle(run_dir: RunDir, job: str, state: slurm.JobState, logs: Path) -> Failure | None:
    """Return the root cause of an ended job's run, or None; writes it to run.json if the run could not."""
    known, failure = _ended(run_dir)
    deadline = time.monotonic() + _SETTLE_S
    while known is None and state.state in _ITS_OWN and time.monotonic() < deadline:
        time.sleep(0.5)
        known, failure = _ended(run_dir)
    if known == "completed" or (known == "failed" and state.state in (*_ITS_OWN, slurm.FORGOTTEN)):
        return failure
    failure = _cause(run_dir, job, state, logs)
    _close(run_dir, failure)
    return failure


def withdraw(jobs: dict[str, RunDir], interrupted: Interrupted) -> None:
    """Cancel jobs because the user interrupted the wait, and mark each unfinished run as interrupted."""
    if not jobs:
        return
    say(f"rankscope: cancelling {len(jobs)} jobs")
    slurm.cancel(jobs)
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline:
        try:
            if all(state.over for state in slurm.states(jobs).values()):
                break
        except slurm.Unreachable:
            pass
        time.sleep(0.5)
    for run_dir in jobs.values():
        if _ended(run_dir)[0] not in ("completed", "failed"):
            _close(run_dir, Failure(kind="interrupted", message=f"interrupted by {interrupted}"))


def _ended(run_dir: RunDir) -> tuple[Status | None, Failure | None]:
    """Return the final status that the run itself wrote, or None, and its failure."""
    list(run_dir.path.iterdir())  # makes a network file system refresh its cache
    record = run_dir.read_record()
    if record["status"] in ("submitted", "running"):
        return None, None
    failure = record.get("failure")
    return record["status"], None if failure is None else msgspec.convert(failure, Failure)


def _close(run_dir: RunDir, failure: Failure) -> None:
    record = run_dir.read_record()
    finish(run_dir, failure, record.get("passes", {}))


def _cause(run_dir: RunDir, job: str, state: slurm.JobState, logs: Path) -> Failure:
    """Return how SLURM ended a job, or the last message of a job that ended before its run."""
    log, last = _last_words(logs, job)
    kind = _KINDS.get(state.state, "slurm")
    if state.state == slurm.FORGOTTEN and log is None:  # SLURM forgets parts of an array that never began
        kind = "cancelled"
    why = f" ({state.reason})" if state.reason not in ("", "None", state.state) else ""
    words = {
        "cancelled": "was cancelled" if log is not None else "was cancelled before it began",
        "time_limit": "came to its time limit",
        "node_fail": f"lost a node of {state.nodes}; down: {slurm.down(state.nodes) or 'SLURM no longer names one'}",
        "oom": "used more memory than it was given",
    }
    text = f"SLURM job {job} {words.get(kind, f'ended as {state.state}{why}')}"
    if kind == "slurm" and last is not None:
        text = f"{text}: {last}"
    passes = [name for name, status in run_dir.read_record().get("passes", {}).items() if status == "running"]
    return Failure(pass_name=passes[-1] if passes else None, kind=kind, message=text, log=log)


def _last_words(logs: Path, job: str) -> tuple[str | None, str | None]:
    """Return the log of a job's first node, and its most informative line."""
    path = logs / f"{job}_0_log.err"
    try:
        lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return None, None
    own = [line.removeprefix("rankscope: ") for line in lines if line.startswith("rankscope: ")]
    others = [line for line in lines if not line.startswith(("srun:", "submitit"))]
    return str(path), next(iter(own[-1:] or others[-1:] or lines[-1:]), None)
