"""Signals and processes of a run: noticing that it shall stop, and leaving no process of it behind.

Every process of a run inherits `RANKSCOPE_RUN_DIR`. Only a process that carries the run's own folder there is ever
signalled, so nothing else can be hit, and one that left its parent or its session is still found.
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

from rankscope.conf.parent_death import signal_at_parent_death

MARK = "RANKSCOPE_RUN_DIR"
POLL_S = 0.2

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The user or the system asked the launcher to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Stop:
    """While entered, SIGINT, SIGTERM and SIGHUP are noted; `check` raises `Interrupted` where it is safe to stop.

    An exception out of a handler could fall between the start of a process and the note of its pid, or into the
    clean-up itself. A note cannot: a second Ctrl-C changes nothing.
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
        """Raise `Interrupted` if a signal came."""
        if self.signum is not None:
            raise Interrupted(self.signum)

    def wait(self, process: subprocess.Popen[Any]) -> int:
        """Wait for `process`; returns its exit status, or raises `Interrupted` with the process still running."""
        while process.poll() is None:
            self.check()
            time.sleep(POLL_S)
        return process.returncode


def start(command: list[str], environment: dict[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Start `command` in its own session, out of the terminal's Ctrl-C; it gets SIGTERM if the launcher is killed."""
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with(os.getpid()),
        **options,
    )


def mark(run_dir: Path) -> str:
    """Return the value of `MARK` for a run."""
    return str(run_dir.resolve())


def of_run(run_dir: Path) -> list[psutil.Process]:
    """Every process that carries the run's mark, but this one."""
    value = mark(run_dir)
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and is_of_run(process, value)]


def is_of_run(process: psutil.Process, value: str) -> bool:
    """Whether `process` carries `value` as its mark; one that is gone, a zombie or another user's does not."""
    try:
        return process.environ().get(MARK) == value
    except (psutil.Error, OSError):
        return False


def end(process: subprocess.Popen[Any], run_dir: Path, grace_s: float) -> None:
    """Ask `process` to stop, then kill it and every process of the run; returns when none is left."""
    if process.poll() is None:
        process.terminate()
        _wait(process, grace_s)
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(of_run(run_dir), timeout=min(grace_s, 1.0))
    while alive:  # again, since a process may have been born while the list was made
        for leftover in alive:
            leftover.kill()
        psutil.wait_procs(alive, timeout=1.0)
        alive = of_run(run_dir)


def _wait(process: subprocess.Popen[Any], timeout_s: float) -> None:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        pass


def die_with(parent: int) -> Callable[[], None]:
    """Return what a new process does first: ask Linux for SIGTERM at its parent's death, even one by SIGKILL."""

    def ask() -> None:
        signal_at_parent_death(signal.SIGTERM)
        if os.getppid() != parent:  # the parent died before it was asked
            os._exit(1)

    return ask
