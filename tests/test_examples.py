"""Every example as its first lines say to run it, on two CPU ranks, from recording to report."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
QUICK = ("world_size=2", "device=cpu", "steps=3", "seconds=0", "warmup_steps=1", "profile.wait=1", "profile.warmup=1")
pytestmark = pytest.mark.distributed


def profiled(
    script: str, run_dir: Path, *arguments: str, passes: str = "plain,torch", more: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Run one example under rankscope; returns the summary."""
    overrides = [f"script={EXAMPLES / script}", f"run_dir={run_dir}", f"passes=[{passes}]", *QUICK, *more]
    command = [sys.executable, "-m", "rankscope.conf.cli", "run", *overrides, "profile.active=2", "--", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads((run_dir / "analysis" / "summary.json").read_text())
    return summary


def test_a_plain_loop_with_a_recorder(tmp_path: Path) -> None:
    summary = profiled("own_loop.py", tmp_path / "run", "--batch-size", "16")
    assert (len(summary["steps"]), summary["ranks"], summary["throughput"]["mfu"]) == (2, [0, 1], None)
    rate = summary["throughput"]
    assert rate["samples_per_s"] == pytest.approx(2 * 16 / (rate["step_ms_mean"] * 1e-3), rel=1e-3)
    assert sum(row["matched"] for row in summary["collectives"] if row["kind"] == "allreduce") >= 2
    assert all(row["data_wait_ms"] > 0 for row in summary["per_rank"])
    assert all(word.startswith("profile") for item in summary["findings"] for word in item["overrides"])


def test_a_script_that_nobody_edited(tmp_path: Path) -> None:
    summary = profiled("char_lm.py", tmp_path / "run", "--characters", "300", more=("separate=true",))
    assert summary["steps"] == [1] and len(summary["per_rank"]) == 2  # the window fits the three steps that it makes
    said = [item["message"] for item in summary["warnings"] if item["kind"] == "recording"]
    # plain has seen that the script makes three steps, and torch needs no more
    assert said == ["plain pass: the script ended after 3 steps (2 counted in plain)"]


@pytest.mark.parametrize(
    ("script", "package", "arguments", "micro_steps"),
    [
        ("lightning_callback.py", "pytorch_lightning", ("--steps", "6"), 1),
        ("hf_trainer.py", "transformers", ("--steps", "6", "--accumulate", "2"), 2),
        ("accelerate_loop.py", "accelerate", ("--steps", "12"), 2),
    ],
)
def test_adapters(script: str, package: str, arguments: tuple[str, ...], micro_steps: int, tmp_path: Path) -> None:
    pytest.importorskip(package)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    command = [sys.executable, *launcher, "--rdzv-endpoint=localhost:0", str(EXAMPLES / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    bare = done.stdout
    run_dir = tmp_path / "run"
    summary = profiled(script, run_dir, *arguments, passes="torch", more=("run_on=true",))
    assert (summary["steps"], summary["ranks"]) == ([3, 4], [0, 1])
    for local_rank in "01":
        (log,) = run_dir.glob(f"passes/torch/torchrun/*/attempt_0/{local_rank}/stdout.log")
        assert results(bare) >= results(log.read_text()) != set()  # trained to the same numbers
        info = json.loads((run_dir / "passes/torch/ranks" / local_rank / "rank.json").read_text())
        batch = 8 if script.startswith("hf") else 64
        assert (info["steps_from"], info["samples_per_step"]) == ("recorder", batch * micro_steps)
    steps = pq.read_table(run_dir / "passes/torch/ranks/0/steps.parquet").to_pandas()
    assert (steps[["data_wait_ns", "forward_ns", "backward_ns", "optimizer_ns"]] > 0).all(axis=None)


def results(text: str) -> set[str]:
    """Return what ranks print at their end: both may write into one line."""
    return set(re.findall(r"rank \d: (?:loss|\d+ steps)[^\n]*?(?:batches|parameters [-.\d]+)", text))
