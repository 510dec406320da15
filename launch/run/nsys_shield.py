"""Runs one rank of the nsys pass: torchrun starts this process, which starts nsys, which starts the rank.

torchrun ends ranks by SIGTERM. nsys would forward the signal and could be killed while it writes the report. So this
process keeps the signal from nsys and sends it to the rank. nsys then sees its program end and writes the report. nsys
exits with the rank's exit status, and so does this process; with 1 if nsys has not started the rank. nsys may lose its
agent before it starts the rank, on a busy host. Then it is started again.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import psutil

from rankscope.conf import RunConfig, RunDir, load_config
from rankscope.launch.system.nsys_command import PASS, is_profiled, profile_command, program, rank_command, sees_gpu
from rankscope.launch.system.processes import MARK, die_with, is_of_run

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_CRASHES = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_LAUNCHER, _TEE = "nsys-launcher", "nsys-tee"
_AGAIN_S = 0.2
_STARTS = 3  # of nsys, if it ends without having started the rank


def main(arguments: list[str]) -> int:
    """Run the rank that torchrun's environment names; `arguments` are the run folder and the pass."""
    run_dir = RunDir(Path(arguments[0]))
    config = load_config(run_dir.config)
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    command = rank_command(run_dir, PASS)
    if not is_profiled(config, rank, local_rank):
        os.execv(command[0], command)
    progress = run_dir.for_pass(PASS).rank(rank).progress
    return _Shield(lambda start: _command(config, run_dir, rank, command, start), progress).run()


def _command(config: RunConfig, run_dir: RunDir, rank: int, command: list[str], start: int) -> list[str]:
    rank_dir = run_dir.for_pass(PASS).rank(rank)
    rank_dir.path.mkdir(parents=True, exist_ok=True)
    cuda = sees_gpu(json.loads(run_dir.environment.read_text()), config)
    session = f"rankscope-{os.getpid()}-{rank}-{start}"
    return profile_command(program(config), config, rank_dir, session, cuda=cuda, command=command)


class _Shield:
    """Waits for nsys, and sends a signal that asks to stop to the rank, once."""

    def __init__(self, command: Callable[[int], list[str]], progress: Path) -> None:
        self._command = command  # by the number of the start
        self._progress = progress
        self._asked: int | None = None
        self._told = False
        self._started = False  # whether a program of nsys was seen
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Start nsys and return its exit status."""
        for number in _SIGNALS:
            signal.signal(number, self._ask)
        die_with(os.getppid())()
        # Some emitters name the capture range by a plain C string. By default nsys notices registered strings only.
        umask = os.umask(0)
        os.umask(umask)
        environment = os.environ | {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0", "RANKSCOPE_UMASK": f"{umask:o}"}
        status = 1
        for start in range(_STARTS):
            status = self._run_once(self._command(start), environment)
            if self._started or self._progress.exists() or self._asked is not None:
                break
            print(f"nsys ended with status {status} before it started the rank", file=sys.stderr, flush=True)
        return self._leave(status)

    def _run_once(self, command: list[str], environment: dict[str, str]) -> int:
        self._process = subprocess.Popen(command, env=environment, start_new_session=True)
        while True:
            try:
                return self._process.wait(_AGAIN_S)
            except subprocess.TimeoutExpired:
                self._started = self._started or bool(applications(self._process.pid))
                self._tell()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = self._asked or number

    def _tell(self) -> None:
        """Send the signal to the rank. Without a process to send it to, the rank has ended or is not started yet."""
        if self._asked is None or self._told or self._process is None:
            return
        for application in self._rank() or applications(self._process.pid):
            with suppress(ProcessLookupError):  # the process has just ended
                os.kill(application, self._asked)
            self._told = True

    def _rank(self) -> list[int]:
        """Return the pid of the rank, which it writes to progress.json once it runs; empty before."""
        try:
            pid = int(json.loads(self._progress.read_text())["pid"])
            process = psutil.Process(pid)
        except (OSError, ValueError, KeyError, TypeError, psutil.Error):
            return []
        return [pid] if is_of_run(process, os.environ.get(MARK, "")) else []

    def _leave(self, status: int) -> int:
        """Return the status of nsys. If the rank crashed, crash by the same signal, so that torchrun reports it."""
        number = -status if status < 0 else status - 128
        if status < 0 or number in _CRASHES:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if number != signal.SIGKILL:
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            threading.Event().wait(1)  # until the signal arrives
        # nsys can lose its agent and end with 0. The rank never ran then, and the other ranks would wait for it.
        return status if status or self._progress.exists() else 1


def applications(nsys: int) -> list[int]:
    """Return the programs that nsys runs: the children of its launcher, whichever of its threads started them."""
    found = []
    for child in _children(nsys):
        name = _name(child)
        if name.startswith(_LAUNCHER[:15]):
            found += [pid for pid in _children(child) if not _name(pid).startswith(_TEE)]
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, listed.read_text().split())
        except OSError:
            continue  # the thread has just ended
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
