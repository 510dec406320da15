"""Runs one start as one torchrun: builds its command and watches it until all ranks have ended or were stopped."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from rankscope.conf import PassDir, RankDir, RunConfig, RunDir
from rankscope.conf.contract import DUMP, ENDED, EXPORT, RECORDED, SOCKETS, STACKS, TURN
from rankscope.conf.files import read_json
from rankscope.launch.run.gpu_state import GpuState
from rankscope.launch.system import processes, slurm
from rankscope.launch.system.environment import usable_cores
from rankscope.launch.system.nsys_command import sees_gpu
from rankscope.launch.system.rank_progress import Display, RankProgress, exported_bytes, read_progress, stand_still

_STACK_WAIT_S = 3.0
_DUMP_WAIT_S = 1.0
_AT_WORK_S = 30.0  # a job that made progress so short a time ago was stopped at work; steps seldom take longer
_WITHOUT_STEP = 20  # backward passes after which the user is told that no step was found


@dataclass(frozen=True)
class Cut:
    """The limit that stopped a pass, and a message about it."""

    kind: Literal["timeout", "stall", "time_limit"]
    message: str
    stands_still: bool = True  # otherwise a rank has just made progress, so that no collective is known to hang


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a pass ended: torchrun's exit status, the limit that stopped it if any, and each rank's last progress."""

    returncode: int
    cut: Cut | None
    progress: dict[int, RankProgress]

    def recorded(self, ranks: Sequence[int]) -> bool:
        """Whether every rank has written all its files: nothing that came later can spoil the recording."""
        return bool(ranks) and all(rank in self.progress and self.progress[rank].phase in RECORDED for rank in ranks)


def torchrun_command(config: RunConfig, run_dir: RunDir, names: Sequence[str], rendezvous: Sequence[str]) -> list[str]:
    """Return the command of one start, which records the passes `names`.

    `rendezvous` are torchrun's options for the meeting point of the nodes.
    """
    name = names[0]
    return [
        sys.executable,
        *("-P", "-m", "torch.distributed.run"),  # -P: a file of the working folder must not hide a module of Python
        f"--nnodes={config.launch.nnodes}",
        f"--nproc-per-node={config.world_size // config.launch.nnodes}",
        "--rdzv-backend=c10d",
        *rendezvous,
        f"--rdzv-id={run_dir.path.name}-{name}",
        "--max-restarts=0",
        f"--log-dir={run_dir.for_pass(name).torchrun}",
        "--redirects=3",
        *("--no-python", sys.executable, "-P", "-u"),
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
    passes = [run_dir.for_pass(name) for name in names]
    pass_dir = passes[0]
    pass_dir.torchrun.mkdir(parents=True)
    if config.launch.nnodes == 1:  # with several nodes, torchrun assigns the ranks later
        for rank in range(config.world_size):
            pass_dir.rank(rank).path.mkdir(parents=True)
    gpus = GpuState(run_dir.path, on=sees_gpu(read_json(run_dir.environment), config))
    with gpus, tempfile.TemporaryDirectory(prefix="rankscope-", ignore_cleanup_errors=True) as sockets:
        environment = rank_environment(config, run_dir, os.environ) | {SOCKETS: sockets}
        with pass_dir.agent_log.open("wb") as log:
            agent = processes.start(
                list(command), environment, stdin=_input(config), stdout=log, stderr=subprocess.STDOUT
            )
        try:
            cut = _watch(agent, config, passes, stop, gpus)
            if cut is not None:
                _ask_for_stacks(run_dir, pass_dir)
        finally:
            gpus.stop()
            processes.end(agent, run_dir.path, config.launch.grace_s)
        gpus.add_to([rank for pass_dir in passes for rank in pass_dir.ranks()])
    return Ended(returncode=agent.returncode, cut=cut, progress=read_progress(pass_dir))


def _input(config: RunConfig) -> int | None:
    """Return what the ranks read: what is piped into a script; nothing of a terminal, which is in another session."""
    piped = config.script is not None and sys.stdin is not None and not sys.stdin.closed and not sys.stdin.isatty()
    return None if piped else subprocess.DEVNULL


def own_ranks(config: RunConfig, pass_dir: PassDir) -> list[int]:
    """Return the ranks of this node: all ranks on one node, otherwise those that have a folder on its local disk."""
    if config.launch.nnodes == 1:
        return list(range(config.world_size))
    return [rank.rank for rank in pass_dir.ranks()]


def _watch(
    agent: "subprocess.Popen[bytes]", config: RunConfig, passes: Sequence[PassDir], stop: processes.Stop, gpus: GpuState
) -> Cut | None:
    """Show progress until torchrun ends; returns None, or the limit that was exceeded.

    A script may run on for hours when its ranks have recorded: then the GPUs are not sampled any more.
    """
    pass_dir = passes[0]
    clock, ranks, hint = _Clock(config, passes), config.world_size // config.launch.nnodes, None
    with Display(passes, ranks) as display:
        while agent.poll() is None:
            if stop.signum is not None:
                more = "; then nsys has as long again to write" if pass_dir.name == "nsys" else ""
                display.say(f"{pass_dir.name}: stopping the ranks, at most {config.launch.grace_s:g} s{more}")
            stop.check()
            progress = read_progress(pass_dir)
            display.update(progress)
            if _recorded(progress, ranks):
                gpus.stop()
            if hint is None and (hint := _hint(config, progress)) is not None:
                display.say(f"{pass_dir.name}: {hint}")
            cut = clock.exceeded(progress)
            if cut is not None:
                return cut
            time.sleep(processes.POLL_S)
    stop.check()
    return None


def _recorded(ranks: Mapping[int, RankProgress], count: int) -> bool:
    """Whether all `count` ranks of this node have written their files."""
    return len(ranks) >= count and all(said.phase in RECORDED for said in ranks.values())


def _hint(config: RunConfig, ranks: Mapping[int, RankProgress]) -> str | None:
    """Return what to do about a script whose loop runs and whose steps are not found, or None. It goes on meanwhile."""
    passes = max((said.backwards for said in ranks.values()), default=0)
    if passes < _WITHOUT_STEP:
        return None
    why = "" if config.steps_from == "auto" else f" of steps_from={config.steps_from}"
    return (
        f"{passes} backward passes, and no step{why} was found; the script goes on. "
        "steps_from=backward takes each of them as a step; or call Recorder().step() once a step"
    )


class _Clock:
    """Knows the limits of a start, and when the ranks last made progress."""

    def __init__(self, config: RunConfig, passes: Sequence[PassDir]) -> None:
        self._limits, self._end = config.launch, slurm.end_of_job()
        self._patient = config.script is not None or config.compile != "off"
        self._runs_on, self._ranks = config.run_on, config.world_size // config.launch.nnodes
        self._passes, self._exported = passes, 0
        self._begun = self._moved = self._stepped = self._last = time.monotonic()
        self._before: dict[int, RankProgress] = {}

    def exceeded(self, ranks: dict[int, RankProgress]) -> Cut | None:
        """Return the limit that is exceeded now, or None."""
        now, limits = time.monotonic(), self._limits
        if self._waits_for_turn(ranks):
            self._begun += now - self._last
            self._moved = now
        self._last = now
        if not stand_still(self._before, ranks):
            self._stepped = now
        if self._stepped == now or self._sets_up(ranks) or self._exports(ranks):
            self._moved = now
        self._before = ranks
        if self._end is not None and time.time() > self._end - limits.reserve_s:
            text = f"SLURM ends this job within {limits.reserve_s} s (launch.reserve_s); request more time"
            return Cut("time_limit", text, stands_still=self._stands_still(now))
        stalled = now - self._moved > limits.stall_timeout_s
        if _recorded(ranks, self._ranks):
            waits = self._runs_on and any(said.phase != ENDED for said in ranks.values())
            text = f"the script did not end (launch.stall_timeout_s={limits.stall_timeout_s:g})"
            return Cut("stall", text) if stalled and not waits else None
        if now - self._begun > limits.timeout_s:
            text = f"the pass did not end in time (launch.timeout_s={limits.timeout_s:g})"
            return Cut("timeout", text, stands_still=self._stands_still(now))
        if stalled:
            text = f"no rank made progress (launch.stall_timeout_s={limits.stall_timeout_s:g})"
            if not ranks and limits.rdzv_endpoint != "auto":  # torchrun waits for ever, and says nothing
                text += (
                    f"; no rank started: launch.rdzv_endpoint={limits.rdzv_endpoint} may be taken by another program, "
                    "or not reachable"
                )
            return Cut("stall", text)
        return None

    def _stands_still(self, now: float) -> bool:
        return now - self._stepped > min(_AT_WORK_S, self._limits.timeout_s / 2)

    def _waits_for_turn(self, ranks: Mapping[int, RankProgress]) -> bool:
        """Return whether this run waits until others on this host have measured, or have set up."""
        return len(ranks) >= self._ranks and all(said.phase == TURN for said in ranks.values())

    def _sets_up(self, ranks: Mapping[int, RankProgress]) -> bool:
        """Return whether no step was made yet where the first one may take any time: to load, tokenise, compile."""
        return (
            self._patient and len(ranks) >= self._ranks and not any(said.step or said.alone for said in ranks.values())
        )

    def _exports(self, ranks: Mapping[int, RankProgress]) -> bool:
        """Return whether a trace has grown, or its rank has computed: torch sums operators for minutes at its end."""
        before = self._exported
        pids = [said.pid for said in ranks.values() if said.phase == EXPORT]
        if pids:
            self._exported = exported_bytes(self._passes) + sum(map(_cpu_s, pids))
        return self._exported > before


def _cpu_s(pid: int) -> int:
    """Return how many seconds a process has computed; 0 if it is gone."""
    try:
        return int(psutil.Process(pid).cpu_times().user)
    except psutil.Error:
        return 0


def _ask_for_stacks(run_dir: RunDir, pass_dir: PassDir) -> None:
    """Ask each rank to write the stacks of its threads, then its record of collectives.

    One after the other: a thread that works while stacks are written can garble them.
    """
    value = processes.mark(run_dir.path)
    asked: list[tuple[psutil.Process, RankDir]] = []
    for rank, progress in read_progress(pass_dir).items():
        with suppress(psutil.Error):
            process = psutil.Process(progress.pid)
            if progress.stacks and processes.is_of_run(process, value):
                process.send_signal(STACKS)
                asked.append((process, pass_dir.rank(rank)))
    _wait_for([rank.stack for _, rank in asked], _STACK_WAIT_S)
    for process, _ in asked:
        with suppress(psutil.Error):
            process.send_signal(DUMP)
    _wait_for([rank.flight for _, rank in asked], _DUMP_WAIT_S)


def _wait_for(files: list[Path], limit_s: float) -> None:
    """Wait until all files have content, at most so long."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and not all(path.exists() and path.stat().st_size for path in files):
        time.sleep(processes.POLL_S)
