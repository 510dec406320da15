"""Real runs for the launcher's tests: the smallest model, a handful of steps, and a stand-in for the analysis."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from rankscope.launch.run import record

TINY = (
    *("world_size=2", "batch_size=2", "device=cpu", "model=mlp", "model.size=tiny", "steps=3", "warmup_steps=1"),
    *("seconds=0", "passes=[plain,torch]"),
    *("profile.wait=1", "profile.warmup=1", "profile.active=2"),
)

# says what it was given, and that it has begun; the second goes on until it is stopped
ANALYSIS = ("-c", "import sys; print('ANALYSED', *sys.argv[1:])")
ENDLESS_ANALYSIS = (
    "-c",
    "import pathlib, sys, time; pathlib.Path(sys.argv[1], 'analysis').mkdir(); time.sleep(600)",
)


def read_json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def of_run(run_dir: Path) -> list[str]:
    """Return the command lines of the processes that carry `run_dir` in their environment or arguments."""
    found, needle = [], str(run_dir)
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if process.pid != os.getpid() and needle in " ".join([*command, *process.environ().values()]):
                found.append(" ".join(command))
        except psutil.Error:
            continue
    return found


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = 180.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def start_launcher(
    *overrides: str, base: tuple[str, ...] = TINY, analysis: tuple[str, ...] = ANALYSIS, stdin: Any = None
) -> "subprocess.Popen[str]":
    """Start `rankscope run` as a user would, in a process group of its own, with a stand-in for the analysis."""
    code = (
        "import sys; from rankscope.launch import main; from rankscope.launch.run import record; "
        f"record._ANALYSIS = {analysis!r}; sys.exit(main.main(sys.argv[1:]))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, *base, *overrides],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def stub_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_ANALYSIS", ANALYSIS)
