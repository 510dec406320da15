"""Jobs whose loaders set the pace on every rank, recorded on two H200s: nobody is late, although devices wait.

`slow_loader`: 50 ms in the loader of every rank. `mlp`: batches are made by the thread of the steps, in 30 to 50 ms.
No host waits for another one, so one of them runs ahead. Its device waits 25 to 35 ms in each step for the other.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis import load, summarise

from .archives import unpack


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("two_gpus/paced_by_loaders", tmp_path_factory.mktemp("paced_by_loaders"))


@pytest.mark.parametrize("job", ["slow_loader", "mlp"])
def test_no_rank_is_late(job: str, recorded: Path) -> None:
    summary = summarise(load(recorded / job))
    late = summary["stragglers"]
    assert (late["window"], late["verdict"], late["rank"]) == ("timed", "none", None) and late["reason"]
    assert [item["id"] for item in summary["findings"] if item["id"].startswith("straggler")] == []


def traced(job: Path, folder: Path) -> dict[str, Any]:
    """Return what is said of the traces alone."""
    for rank in (0, 1):
        shutil.copy(job / f"passes/torch/ranks/{rank}/trace.json", folder / f"rank{rank}.json")
    return summarise(load(folder))


def test_a_trace_alone_says_why_it_is_open(recorded: Path, tmp_path: Path) -> None:
    summary = traced(recorded / "slow_loader", tmp_path)
    assert summary["stragglers"]["verdict"] == "undetermined"
    assert "stands still for its loader" in summary["stragglers"]["reason"]
    assert [item["id"] for item in summary["findings"] if item["id"].startswith("straggler")] == []


def test_a_loader_that_is_slower_in_each_traced_step_is_named_for_that(recorded: Path, tmp_path: Path) -> None:
    """Under the profiler rank 0 waits 72 to 76 ms for a batch, rank 1 47 to 49 ms. Its device comes 74 ms later."""
    summary = traced(recorded / "mlp", tmp_path)
    late = summary["stragglers"]
    assert (late["verdict"], late["rank"], late["cause"]) == ("persistent", 0, "data")
    (found,) = [item for item in summary["findings"] if item["id"] == "straggler_data"]
    assert found["recoverable_ms"] == pytest.approx(26, rel=0.15)
