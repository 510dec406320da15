"""Runs one start as one torchrun: builds its command and watches it until all ranks have ended or were stopped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import psutil

from rankscope.conf import PassDir, RunConfig, RunDir
from rankscope.launch.system import processes, slurm
from rankscope.launch.system.environment import usable_cores
from rankscope.launch.system.rank_progress import Display, RankProgress, read_progress, stand_still

_STACK_WAIT_S = 3.0


@dataclass(frozen=True)
class Cut:
    """The limit that stopped a pass, and a message about it."""

    kind: Literal["timeout", "stall", "time_limit"]
    message: str


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a pass ended: torchrun's exit status, the limit that stopped it if any, and each rank's last progress."""

    returncode: int
    cut: Cut | None
    progress: dict[int, RankProgress]


def torchrun_command(config: RunConfig, run_dir: RunDir, names: Sequence[str], rendezvous: Sequence[str]) -> list[str]:
    """Return the command of one start, which records the passes `names`.

    `rendezvous` are torchrun's options for the meeting point of the nodes.
    """
    name = names[0]
    return [
        sys.executable,
        *("-m", "torch.distributed.run"),
        f"--nnodes={config.launch.nnodes}",
        f"--nproc-per-node={config.world_size // config.launch.nnodes}",
        "--rdzv-backend=c10d",
        *rendezvous,
        f"--rdzv-id={run_dir.path.name}-{name}",
        "--max-restarts=0",
        f"--log-dir={run_dir.for_pass(name).torchrun}",
        "--redirects=3",
        *("-m", "rankscope.launch.run.nsys_shield" if name == "nsys" else "rankscope.harness"),
        *(str(run_dir.path), ",".join(names)),
    ]


def rank_environment(config: RunConfig, run_dir: RunDir, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of torchrun and its ranks.

    Without OMP_NUM_THREADS torchrun warns and sets it to 1; a script gets the value that it would have without
    rankscope. PYTHONFAULTHANDLER makes a rank that crashes in C code print its Python stack.
    """
    ranks = config.world_size // config.launch.nnodes
    threads = str(config.threads or max(1, usable_cores() // ranks))
    if config.threads == 0:
        threads = base.get("OMP_NUM_THREADS", threads)
    added = {"OMP_NUM_THREADS": threads, "PYTHONFAULTHANDLER": "1", processes.MARK: processes.mark(run_dir.path)}
    if config.script is not None and config.threads == 0:
        del added["OMP_NUM_THREADS"]
    return {key: value for key, value in base.items() if key != "TORCHELASTIC_ERROR_FILE"} | added


def run_start(
    config: RunConfig, run_dir: RunDir, names: Sequence[str], command: Sequence[str], stop: processes.Stop
) -> Ended:
    """Run the command of a start to its end. Leaves no process of the run, however it returns or raises.

    Raises `Interrupted` after a signal, and `OSError` if torchrun cannot be started or its log cannot be written.
    """
    pass_dir = run_dir.for_pass(names[0])
    pass_dir.torchrun.mkdir(parents=True)
    if config.launch.nnodes == 1:  # with several nodes, torchrun assigns the ranks later
        for rank in range(config.world_size):
            pass_dir.rank(rank).path.mkdir(parents=True)
    environment = rank_environment(config, run_dir, os.environ)
    with pass_dir.agent_log.open("wb") as log:
        agent = processes.start(list(command), environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        cut = _watch(agent, config, pass_dir, stop)
        if cut is not None:
            _ask_for_stacks(run_dir, pass_dir)
    finally:
        processes.end(agent, run_dir.path, config.launch.grace_s)
    return Ended(returncode=agent.returncode, cut=cut, progress=read_progress(pass_dir))


def own_ranks(config: RunConfig, pass_dir: PassDir) -> list[int]:
    """Return the ranks of this node: all ranks on one node, otherwise those that have a folder on its local disk."""
    if config.launch.nnodes == 1:
        return list(range(config.world_size))
    return [rank.rank for rank in pass_dir.ranks()]


def _watch(agent: "subprocess.Popen[bytes]", config: RunConfig, pass_dir: PassDir, stop: processes.Stop) -> Cut | None:
    """Show progress until torchrun ends; returns None, or the limit that was exceeded."""
    limits, end = config.launch, slurm.end_of_job()
    begun = moved = time.monotonic()
    before: dict[int, RankProgress] = {}
    with Display(pass_dir.name, config.world_size // config.launch.nnodes) as display:
        while agent.poll() is None:
            if stop.signum is not None:
                display.say(f"{pass_dir.name}: stopping the ranks, at most {config.launch.grace_s:g} s")
            stop.check()
            ranks = read_progress(pass_dir)
            display.update(ranks)
            now = time.monotonic()
            if not stand_still(before, ranks):
                moved = now
            before = ranks
            if now - begun > limits.timeout_s:
                return Cut("timeout", f"the pass did not end in time (launch.timeout_s={limits.timeout_s:g})")
            if now - moved > limits.stall_timeout_s:
                return Cut("stall", f"no rank made progress (launch.stall_timeout_s={limits.stall_timeout_s:g})")
            if end is not None and time.time() > end - limits.reserve_s:
                text = f"SLURM ends this job within {limits.reserve_s} s (launch.reserve_s); request more time"
                return Cut("time_limit", text)
            time.sleep(processes.POLL_S)
    stop.check()
    return None


def _ask_for_stacks(run_dir: RunDir, pass_dir: PassDir) -> None:
    """Ask each rank to write the stacks of its threads, and wait up to `_STACK_WAIT_S` for them."""
    value, waiting = processes.mark(run_dir.path), []
    for rank, progress in read_progress(pass_dir).items():
        try:
            process = psutil.Process(progress.pid)
            if processes.is_of_run(process, value):
                process.send_signal(signal.SIGUSR1)
                waiting.append(pass_dir.rank(rank).stack)
        except psutil.Error:
            continue
    deadline = time.monotonic() + _STACK_WAIT_S
    while time.monotonic() < deadline and not all(path.exists() and path.stat().st_size for path in waiting):
        time.sleep(processes.POLL_S)
