"""Ctrl-C, SIGTERM and SIGKILL at several moments: the status is written and no process is left."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..conftest import ANALYSIS, ENDLESS_ANALYSIS, of_run, read_json, start_launcher, wait_for

pytestmark = pytest.mark.distributed

ENDLESS = ("steps=1000000", "passes=[plain]", "num_workers=1")  # loader workers must go too


def phase(run_dir: Path) -> str | None:
    path = run_dir / "passes" / "plain" / "ranks" / "0" / "progress.json"
    return read_json(path)["phase"] if path.exists() else None


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "start": lambda run_dir: (run_dir / "passes" / "plain" / "torchrun" / "agent.log").exists(),
    "setup": lambda run_dir: phase(run_dir) is not None,
    "steps": lambda run_dir: phase(run_dir) == "measure",
    "analysis": lambda run_dir: (run_dir / "analysis").exists(),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A signal at a moment, to the launcher alone or to its whole process group as a terminal sends it."""

    moment: str
    signum: signal.Signals
    group: bool = False
    twice: bool = False


CASES = [
    Case(moment="start", signum=signal.SIGTERM),
    Case(moment="setup", signum=signal.SIGINT),
    Case(moment="steps", signum=signal.SIGINT, group=True, twice=True),
    Case(moment="steps", signum=signal.SIGTERM),
    Case(moment="analysis", signum=signal.SIGINT, group=True),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.signum.name}-{case.moment}")
def test_interrupted(case: Case, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    in_analysis = case.moment == "analysis"
    overrides = ("passes=[plain]",) if in_analysis else ENDLESS
    launcher = start_launcher(*overrides, f"run_dir={run_dir}", analysis=ENDLESS_ANALYSIS if in_analysis else ANALYSIS)
    wait_for(lambda: MOMENTS[case.moment](run_dir), case.moment)
    send = os.killpg if case.group else os.kill
    for _ in range(2 if case.twice else 1):
        send(launcher.pid, case.signum)
    out, err = launcher.communicate(timeout=180)
    assert launcher.returncode == 128 + case.signum
    assert f"interrupted by {case.signum.name}" in err
    assert "Traceback" not in err
    assert "ANALYSED" not in out
    record = read_json(run_dir / "run.json")
    assert (record["status"], record["failure"]["kind"]) == ("interrupted", "interrupted")
    assert record["passes"] == {"plain": "completed" if in_analysis else "interrupted"}
    assert of_run(run_dir) == []


@pytest.mark.parametrize("moment", ["setup", "steps"])
def test_a_killed_launcher_leaves_no_rank(moment: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    launcher = start_launcher(*ENDLESS, f"run_dir={run_dir}")
    wait_for(lambda: MOMENTS[moment](run_dir), moment)
    launcher.kill()
    launcher.communicate()
    wait_for(lambda: of_run(run_dir) == [], "the ranks to end")


def test_a_killed_agent_leaves_no_rank_and_is_named(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    launcher = start_launcher(*ENDLESS, f"run_dir={run_dir}")
    wait_for(lambda: phase(run_dir) == "measure", "steps")
    agent = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _is_agent(pid, run_dir)]
    os.kill(agent[0], signal.SIGKILL)
    _, err = launcher.communicate(timeout=180)
    assert launcher.returncode == 2
    assert "torchrun itself was ended by SIGKILL" in err
    assert read_json(run_dir / "run.json")["status"] == "failed"
    assert of_run(run_dir) == []


def _is_agent(pid: int, run_dir: Path) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return "torch.distributed.run" in command and str(run_dir) in command
