"""`rankscope capture`: records a window of a job that already runs and has a `Monitor`, on all ranks at the same step.

Exit status as for `rankscope analyze`, which it runs on the window; 2 if no window came.
"""

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

import click

from rankscope.analysis.commands import analyze
from rankscope.analysis.commands.common import Location, run_command
from rankscope.analysis.core.console import Console
from rankscope.analysis.core.notices import AnalysisError
from rankscope.conf.contract import OK
from rankscope.conf.files import read_json, write_json
from rankscope.conf.monitor_dir import MOST_CAPTURED, MonitorDir
from rankscope.conf.run_dir import PassDir

_POLL_S = 0.2


@click.command("rankscope capture")
@click.argument("folder", type=Location())
@click.option(
    "--steps", type=click.IntRange(1, MOST_CAPTURED), default=4, show_default=True, help="Steps that are traced."
)
@click.option("--timeout", type=click.FloatRange(1), default=300.0, show_default=True, help="Seconds to wait for it.")
@click.option("--no-analysis", is_flag=True, help="Only record; print the folder of the window.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
def capture(folder: Path, steps: int, timeout: float, no_analysis: bool, quiet: bool) -> int:
    """Record a window of a running job on all ranks, and analyse it.

    FOLDER: the job's ...-watch folder, or the folder that holds it (the newest is taken). The job has a Monitor, or was
    started with RANKSCOPE_LISTEN=FOLDER and python -m rankscope.harness SCRIPT (docs/monitor.md).
    """
    watch = _watch(folder)
    console = Console(quiet=quiet)
    console.print(f"asking {watch.path} for {steps} steps")
    window = _window(watch, steps, timeout)
    console.print(f"window: {window.path}", soft_wrap=True)
    if no_analysis:
        return OK
    return analyze.main([str(window.path), *(["--quiet"] if quiet else [])])


def _watch(folder: Path) -> MonitorDir:
    """Return the watch in a folder: itself, or the newest in it."""
    own = MonitorDir(folder)
    if own.info.exists():
        return own
    found = sorted(path.parent for path in folder.glob(f"*/{own.info.name}")) if folder.is_dir() else []
    if not found:
        raise AnalysisError(f"{folder}: no watched job; give the ...-watch folder of its Monitor")
    return MonitorDir(found[-1])


def _window(watch: MonitorDir, steps: int, timeout: float) -> PassDir:
    """Ask for a window and wait until every rank has written its trace."""
    name = uuid.uuid4().hex
    if watch.request.exists():
        raise AnalysisError(f"{watch.request}: another capture waits; remove the file if it does not")
    deadline = time.monotonic() + timeout
    write_json(watch.request, {"id": name, "steps": steps, "pid": os.getpid()})
    try:
        while (window := _answer(watch, name)) is None:
            if time.monotonic() > deadline:
                raise AnalysisError(f"{watch.path}: no window within {timeout:g} s; does the job run, and make steps?")
            time.sleep(_POLL_S)
    finally:
        watch.request.unlink(missing_ok=True)
    ranks = _ranks(watch)
    while any(not window.rank(rank).info.exists() for rank in range(ranks)):
        if time.monotonic() > deadline:
            absent = [rank for rank in range(ranks) if not window.rank(rank).info.exists()]
            raise AnalysisError(f"{window.path}: ranks {absent} wrote no trace within {timeout:g} s")
        time.sleep(_POLL_S)
    return window


def _answer(watch: MonitorDir, name: str) -> PassDir | None:
    """Return the window that answers a request, as soon as it is open."""
    try:
        lines = watch.events.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            event: Any = json.loads(line)
        except ValueError:
            continue  # the last line may not be complete
        if isinstance(event, dict) and event.get("request") == name and isinstance(event.get("step"), int):
            return watch.window(event["step"])
    return None


def _ranks(watch: MonitorDir) -> int:
    found = read_json(watch.info)
    size = found.get("world_size") if isinstance(found, dict) else None
    return size if isinstance(size, int) and size > 0 else max(len(watch.ranks()), 1)


def main(argv: list[str]) -> int:
    """Run `rankscope capture`; returns the exit status."""
    return run_command(capture, argv)
