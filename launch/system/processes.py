"""Signals and processes of a run: notices a request to stop, and leaves no process of the run behind.

Every process of a run inherits `RANKSCOPE_RUN_DIR`, and signals go to the processes that have the run's own folder
there. A process that has dropped its environment and its parent is found as well, because the launcher adopts it.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Self

import psutil

from rankscope.conf.parent_death import adopt_orphans, signal_at_parent_death

MARK = "RANKSCOPE_RUN_DIR"
POLL_S = 0.2

_OTHERS: dict[int, set[int]] = {}  # agent -> the children that this process had before it
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NSYS = ("nsys", "QdstrmImporter")


class Interrupted(BaseException):
    """The user or the system asked the launcher to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Stop:
    """Inside the block SIGINT, SIGTERM and SIGHUP are only noted; `check` raises `Interrupted` at a safe place.

    An exception from a handler could hit between the start of a process and the storing of its pid, or during the
    clean-up. A note cannot: a second Ctrl-C changes nothing.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.signum = self.signum or signum

    def check(self) -> None:
        """Raise `Interrupted` if a signal arrived."""
        if self.signum is not None:
            raise Interrupted(self.signum)

    def wait(self, process: subprocess.Popen[Any]) -> int:
        """Wait for `process`; returns its exit status, or raises `Interrupted` with the process still running."""
        while process.poll() is None:
            self.check()
            time.sleep(POLL_S)
        return process.returncode


def start(command: list[str], environment: dict[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Start `command` in its own session, away from the terminal's Ctrl-C; it gets SIGTERM if the launcher dies."""
    options.setdefault("stdin", subprocess.DEVNULL)
    adopt_orphans()
    others = {child.pid for child in psutil.Process().children()}
    started: subprocess.Popen[bytes] = subprocess.Popen(
        command, env=environment, start_new_session=True, preexec_fn=die_with(os.getpid()), **options
    )
    _OTHERS[started.pid] = others
    return started


def _adopted(agent: subprocess.Popen[Any]) -> list[psutil.Process]:
    """Return the processes that this one has adopted since it started `agent`, and theirs."""
    if agent.pid not in _OTHERS:
        return []
    known = _OTHERS[agent.pid].union(_OTHERS)
    found = [child for child in psutil.Process().children() if child.pid not in known]
    for child in list(found):
        try:
            found += child.children(recursive=True)
        except psutil.NoSuchProcess:
            continue
    return found


def mark(run_dir: Path) -> str:
    """Return the value of `MARK` for a run."""
    return str(run_dir.resolve())


def of_run(run_dir: Path) -> list[psutil.Process]:
    """Return every process with the run's mark, except this one."""
    value = mark(run_dir)
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and is_of_run(process, value)]


def is_of_run(process: psutil.Process, value: str) -> bool:
    """Whether `process` has `value` as its mark; False for one that is gone, a zombie, or owned by another user."""
    try:
        return process.environ().get(MARK) == value
    except (psutil.Error, OSError):
        return False


def end(process: subprocess.Popen[Any], run_dir: Path, grace_s: float) -> None:
    """Ask `process` to stop, then kill it and every other process of the run; returns when none is left.

    nsys writes its report only when its program has ended, so it gets `grace_s` once more after the others.
    """
    if process.poll() is None:
        process.terminate()
        _wait(process, grace_s)
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(_left(process, run_dir), timeout=min(grace_s, 1.0))
    writing = [leftover for leftover in alive if _is_nsys(leftover)]
    if writing:
        _kill([leftover for leftover in alive if leftover not in writing])
        psutil.wait_procs(writing, timeout=grace_s)
        alive = _left(process, run_dir)
    refused: set[psutil.Process] = set()  # they run as another user
    while alive:  # again, because a process may have started while the list was made
        refused |= _kill(alive)
        psutil.wait_procs([leftover for leftover in alive if leftover not in refused], timeout=1.0)
        alive = [leftover for leftover in _left(process, run_dir) if leftover not in refused]


def _kill(found: list[psutil.Process]) -> set[psutil.Process]:
    """Kill processes; returns those that this user may not kill."""
    refused = set()
    for process in found:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            refused.add(process)
    return refused


def _is_nsys(process: psutil.Process) -> bool:
    try:
        return process.name().startswith(_NSYS)
    except psutil.Error:
        return False


def _left(agent: subprocess.Popen[Any], run_dir: Path) -> list[psutil.Process]:
    return list({*of_run(run_dir), *_adopted(agent)})


def _wait(process: subprocess.Popen[Any], timeout_s: float) -> None:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        pass


def die_with(parent: int) -> Callable[[], None]:
    """Return a function for a new process to call first: it asks Linux for SIGTERM when the parent dies."""

    def ask() -> None:
        signal_at_parent_death(signal.SIGTERM)
        if os.getppid() != parent:  # the parent died before the request
            os._exit(1)

    return ask
