"""SLURM: submits jobs by submitit, follows their states, and reads the limits of the job that this process is in.

States come from squeue, and from the accounting (sacct) once the controller has forgotten a job. So a killed job is
noticed even without accounting; submitit itself would wait for its result forever.
"""

import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from rankscope.conf import ConfigError
from rankscope.conf.sections import SlurmConfig
from rankscope.launch.system.processes import POLL_S, Stop
from rankscope.launch.system.torch_facts import output_of

FORGOTTEN = "FORGOTTEN"  # neither the controller nor the accounting knows the job
_OVER = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED"}
    | {"REVOKED", FORGOTTEN}
)
_PAUSE_S = (1.0, 5.0)  # between two queries: after a change, and the longest without one
_OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_")


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """SLURM's state of a job (RUNNING, NODE_FAIL, ...), the reason, and the nodes that the job has or had."""

    state: str
    reason: str = ""
    nodes: str = ""

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.state in _OVER


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of a job that depend on its point."""

    nodes: int
    gpus_per_node: int | None


class Unreachable(Exception):
    """SLURM does not answer at the moment."""


def require() -> str | None:
    """Raise `ConfigError` if nothing can be submitted from here; returns a notice for the user, or None."""
    if importlib.util.find_spec("submitit") is None:
        raise ConfigError("hydra/launcher=slurm: submitit is not installed; pip install 'rankscope[slurm]'")
    if shutil.which("sbatch") is None:
        raise ConfigError("hydra/launcher=slurm: sbatch is not on PATH; submit from a login node of the cluster")
    _, error = output_of(["sacct", "-X", "-n", "-S", "now"])
    if error is None:
        return None
    return f"rankscope: SLURM has no accounting here ({error}): how a job ended is known only while squeue shows it"


def submit(
    config: SlurmConfig,
    folder: Path,
    name: str,
    shape: Shape,
    run: Callable[[list[str]], None],
    commands: Sequence[Sequence[str]],
    after: str | None,
) -> list[str]:
    """Submit one job for each command, several as one array; returns their numbers.

    Each node of a job calls `run(command)` once. `after` is the job, or array of jobs, that must have ended before.
    Raises `ConfigError` with SLURM's message if SLURM refuses.
    """
    import submitit  # an extra

    executor = submitit.SlurmExecutor(folder, max_num_timeout=0)
    executor.update_parameters(**_parameters(config, name, shape, after))
    try:
        with _as_outside_of_a_job(), executor.batch():
            jobs = [executor.submit(run, list(command)) for command in commands]
    except submitit.core.utils.FailedJobError as error:
        said = [line for line in str(error).splitlines() if line.startswith("sbatch: ")]
        text = (said or str(error).strip().splitlines())[-1]
        raise ConfigError(f"hydra/launcher=slurm: SLURM refuses the job: {text}") from None
    return [submitted.job_id for submitted in jobs]


def _parameters(config: SlurmConfig, name: str, shape: Shape, after: str | None) -> dict[str, Any]:
    """Return submitit's parameters, without those that are left to the cluster."""
    wanted = {
        "job_name": name,
        "partition": config.partition,
        "account": config.account,
        "qos": config.qos,
        "constraint": config.constraint,
        "time": config.timeout_min,
        "nodes": shape.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": config.cpus_per_task,
        "gpus_per_node": shape.gpus_per_node if config.gpus_per_node is None else config.gpus_per_node,
        "mem": None if config.mem_gb is None else f"{round(config.mem_gb * 1024)}M",
        "exclusive": config.exclusive or None,
        "array_parallelism": config.array_parallelism,
        "setup": config.setup or None,
        "dependency": None if after is None else f"afterany:{after}",
        # the nodes of a run wait for each other themselves, and the last one analyses
        "srun_args": ["--kill-on-bad-exit=0", "--wait=0"],
        # a requeued job would find its run folder taken
        "additional_parameters": {"no-requeue": True} | config.additional_parameters,
    }
    return {key: value for key, value in wanted.items() if value is not None}


@contextmanager
def _as_outside_of_a_job() -> Iterator[None]:
    """Hide the variables of the job that this process may be in: sbatch would take them as options."""
    inside = "SLURM_JOB_ID" in os.environ
    hidden = [name for name in os.environ if inside and name.startswith(_OF_A_JOB) and name != "SLURM_CONF"]
    kept = {name: os.environ.pop(name) for name in hidden}
    try:
        yield
    finally:
        os.environ.update(kept)


def states(jobs: Collection[str]) -> dict[str, JobState]:
    """Return the state of each job; raises `Unreachable`."""
    mains = ",".join(sorted({number.partition("_")[0] for number in jobs}))
    listed = _ask("squeue", "-h", "-r", "-t", "all", "-j", mains, "-o", "%F_%K|%T|%r|%N")
    found = {}
    for line in listed or []:
        number, state, reason, nodes = line.split("|", 3)
        found[number.removesuffix("_N/A")] = JobState(state=state, reason=reason, nodes=nodes)
    if set(jobs) - set(found):
        for line in _ask("sacct", "-X", "-n", "-P", "-j", mains, "-o", "JobID,State,NodeList") or []:
            number, state, nodes = line.split("|", 2)
            found.setdefault(number, JobState(state=state.split()[0], nodes=nodes))  # "CANCELLED by 1000"
    return {number: found.get(number, JobState(state=FORGOTTEN)) for number in jobs}


def _ask(*command: str) -> list[str] | None:
    """Return the output lines of a SLURM command; None if it does not know the job, or is not installed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{command[0]} does not answer") from None
    if done.returncode and command[0] == "squeue" and "Invalid job id" not in done.stderr:
        raise Unreachable((done.stderr.strip().splitlines() or [f"{command[0]} fails"])[-1])
    return None if done.returncode else [line for line in done.stdout.splitlines() if line.strip()]


def watch(jobs: Collection[str], stop: Stop) -> Iterator[tuple[str, JobState]]:
    """Yield each job and its state whenever the state changes, until all jobs are over; raises `Interrupted`.

    While SLURM does not answer, no job counts as ended.
    """
    known: dict[str, JobState] = {}
    pause = _PAUSE_S[0]
    while asked := [number for number in jobs if number not in known or not known[number].over]:
        stop.check()
        try:
            found = states(asked)
        except Unreachable:
            found = {}
        changed = {number: state for number, state in found.items() if known.get(number) != state}
        known |= changed
        yield from changed.items()
        pause = _PAUSE_S[0] if changed else min(2 * pause, _PAUSE_S[1])
        if not all(state.over for state in known.values()):
            _sleep(pause, stop)


def _sleep(seconds: float, stop: Stop) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        stop.check()
        time.sleep(POLL_S)


def cancel(jobs: Collection[str]) -> None:
    """Cancel jobs; jobs that are over already are ignored."""
    output_of(["scancel", *jobs])


def down(nodes: str) -> str:
    """Return which of a job's nodes are down and why, or "" if SLURM does not know."""
    text, _ = output_of(["sinfo", "-h", "-N", "-n", nodes, "-t", "down,drain,fail,no_respond", "-o", "%N (%E)"])
    return ", ".join(dict.fromkeys((text or "").splitlines()))


def end_of_job() -> float | None:
    """Return when SLURM ends the job of this process (Unix seconds); None outside a job, or without a limit."""
    number = os.environ.get("SLURM_JOB_ID")
    if number is None:
        return None
    if "SLURM_JOB_END_TIME" in os.environ:  # set by newer versions
        return float(os.environ["SLURM_JOB_END_TIME"])
    text, _ = output_of(["squeue", "-h", "-j", number, "-o", "%e"])
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except ValueError:
        return None


def reason() -> str | None:
    """Return why SLURM ends the job of this process ("NodeDown", "TimeLimit"), or None if it is unknown."""
    number = os.environ.get("SLURM_JOB_ID")
    if number is None:
        return None
    text, _ = output_of(["squeue", "-h", "-j", number, "-o", "%r"])
    return text if text not in ("", "None", None) else None
