"""Every example as its first lines say to run it, on two CPU ranks, from recording to report."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
QUICK = ("world_size=2", "device=cpu", "steps=3", "warmup_steps=1", "profile.wait=1", "profile.warmup=1")
pytestmark = pytest.mark.distributed


def profiled(script: str, run_dir: Path, *arguments: str, passes: str = "plain,torch") -> dict[str, Any]:
    """Run one example under rankscope; returns the summary."""
    overrides = [f"script={EXAMPLES / script}", f"run_dir={run_dir}", f"passes=[{passes}]", *QUICK]
    command = [sys.executable, "-m", "rankscope.conf.cli", "run", *overrides, "profile.active=2", "--", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads((run_dir / "analysis" / "summary.json").read_text())
    return summary


def test_a_plain_loop_with_a_recorder(tmp_path: Path) -> None:
    summary = profiled("own_loop.py", tmp_path / "run", "--batch-size", "16")
    assert (summary["steps"], summary["ranks"], summary["throughput"]["mfu"]) == ([2, 3], [0, 1], None)
    rate = summary["throughput"]
    assert rate["samples_per_s"] == pytest.approx(2 * 16 / (rate["step_ms_p50"] * 1e-3), rel=1e-3)
    assert sum(row["matched"] for row in summary["collectives"] if row["kind"] == "allreduce") >= 2
    assert all(row["data_wait_ms"] > 0 for row in summary["per_rank"])
    assert all(word.startswith("profile") for item in summary["findings"] for word in item["overrides"])


def test_a_script_that_nobody_edited(tmp_path: Path) -> None:
    summary = profiled("char_lm.py", tmp_path / "run", "--characters", "300")
    assert summary["steps"] == [2] and len(summary["per_rank"]) == 2  # it ends in the window
    said = [item["message"] for item in summary["warnings"] if item["kind"] == "recording"]
    assert said == [
        f"{name} pass: the script ended after 3 of 4 steps ({counted} counted)"
        for name, counted in (("plain", 2), ("torch", 1))
    ]
