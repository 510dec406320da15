"""Ending a run: every process that carries its mark goes, whatever it does about it, and no other one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rankscope.launch.system import processes

from ..conftest import wait_for

STUBBORN = (
    "import os, pathlib, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if sys.argv[2:]: subprocess.Popen([sys.executable, __file__, sys.argv[2]], start_new_session=True)\n"
    "pathlib.Path(sys.argv[1]).touch()\n"
    "time.sleep(600)\n"
)


def test_all_of_the_run_goes_and_nothing_else(tmp_path: Path) -> None:
    script, ready, child_ready = tmp_path / "stubborn.py", tmp_path / "ready", tmp_path / "child"
    script.write_text(STUBBORN)
    marked = {**os.environ, processes.MARK: processes.mark(tmp_path)}
    other = {**os.environ, processes.MARK: processes.mark(tmp_path) + "-2"}
    agent = processes.start([sys.executable, str(script), str(ready), str(child_ready)], marked)
    bystander = processes.start([sys.executable, "-c", "import time; time.sleep(600)"], other)
    try:
        wait_for(lambda: ready.exists() and child_ready.exists(), "two processes")
        assert len(processes.of_run(tmp_path)) == 2
        processes.end(agent, tmp_path, grace_s=0.2)
        assert agent.returncode == -signal.SIGKILL
        assert processes.of_run(tmp_path) == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import os, sys, signal; from rankscope.launch.system import processes\n"
        "child = processes.start([sys.executable, '-c', 'import time; time.sleep(600)'], dict(os.environ))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    marked = {**os.environ, processes.MARK: processes.mark(tmp_path)}
    parent = subprocess.run([sys.executable, "-c", code], env=marked, check=False)
    assert parent.returncode == -signal.SIGKILL
    wait_for(lambda: processes.of_run(tmp_path) == [], "the child to end")


def test_signals_are_noted_and_raised_where_it_is_safe() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with processes.Stop() as stop:
        stop.check()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)  # the second changes nothing
        with pytest.raises(processes.Interrupted) as interrupted:
            stop.check()
        assert interrupted.value.signum == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_process_that_drops_its_environment_and_its_session_goes_too(tmp_path: Path) -> None:
    marked = {**os.environ, processes.MARK: processes.mark(tmp_path)}
    pid = tmp_path / "pid"
    agent = processes.start(["sh", "-c", f"env -i setsid sh -c 'echo $$ > {pid}; exec sleep 600' & wait"], marked)
    wait_for(lambda: pid.exists() and bool(pid.read_text()), "the daemon")
    processes.end(agent, tmp_path, grace_s=0.2)
    wait_for(lambda: not psutil.pid_exists(int(pid.read_text())), "the daemon to end")
