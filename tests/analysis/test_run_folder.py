"""Run folders that our own harness recorded on two H100s (tests/data/runs): both passes, one summary."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from rankscope.analysis import load, summarise
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.measure import step_choice
from rankscope.analysis.measure.recording import STEP_COLUMNS
from rankscope.analysis.read.pass_steps import read_steps
from rankscope.analysis.show.markdown import report
from rankscope.conf import RunDir

RUNS = Path(__file__).parents[1] / "data" / "runs"
NAMES = ["resnet_w2", "images_w2"]


def steps(name: str, which: str, rank: int) -> Any:
    return pd.read_parquet(RUNS / name / "passes" / which / "ranks" / str(rank) / "steps.parquet")


@pytest.mark.parametrize("name", NAMES)
def test_breakdown_sums_to_the_step(name: str) -> None:
    table = load(RUNS / name).steps()
    parts = ["compute_ns", "exposed_transfer_ns", "exposed_wait_ns", "copy_ns", "data_stall_ns", "host_gap_ns"]
    assert (table[parts].sum(axis=1) == table["step_ns"]).all()
    assert len(table) == 8 and set(table["step"][~table["analysed"]]) == {table["step"].min()}


@pytest.mark.parametrize("name", NAMES)
def test_window_is_clean(name: str) -> None:
    """The harness meets and synchronises before the window: no left-over kernel, every launch recorded."""
    analysis = load(RUNS / name)
    assert set(analysis.step_table.columns) == set(STEP_COLUMNS)
    assert all(data.left_over == 0 for data in analysis.ranks)
    table = analysis.steps()
    assert (table["covered"] == table["launches"]).all()
    assert analysis.collectives()["matched"].all()


@pytest.mark.parametrize("name", NAMES)
def test_throughput_is_that_of_the_plain_pass(name: str) -> None:
    summary = summarise(load(RUNS / name))
    plain = [steps(name, "plain", rank).query("phase == 'measured'")["device_ns"].median() for rank in (0, 1)]
    traced = [steps(name, "torch", rank).query("phase == 'active'")["device_ns"].median() for rank in (0, 1)]
    step_ms = (plain[0] + plain[1]) / 2 / 1e6
    every = [steps(name, "plain", rank).query("phase == 'measured'")["device_ns"].to_numpy() for rank in (0, 1)]
    mean_ms = float(((every[0] + every[1]) / 2).mean()) / 1e6
    samples = {"resnet_w2": 8, "images_w2": 16}[name]
    assert summary["throughput"]["step_ms_p50"] == pytest.approx(step_ms, rel=1e-4)
    assert summary["throughput"]["samples_per_s"] == pytest.approx(samples / mean_ms * 1000, rel=1e-4)
    assert summary["profiler_overhead"]["torch"] == pytest.approx(sum(traced) / sum(plain), rel=1e-3)


def test_the_unprofiled_steps_decide_who_is_late() -> None:
    """Nothing was planted: the trace sees a late host, the plain steps see ranks that take turns."""
    summary = summarise(load(RUNS / "resnet_w2"))
    late = summary["stragglers"]
    assert (late["window"], late["verdict"], late["rank"]) == ("plain", "rotating", None)
    assert late["traced"]["rank"] is not None and late["traced"]["cause"] == "host"
    assert not [item for item in summary["findings"] if item["id"].startswith("straggler")]
    assert "profilers slow hosts unevenly" in report(summary, None)


def test_a_rank_without_trace_makes_it_partial(tmp_path: Path) -> None:
    shutil.copytree(RUNS / "resnet_w2", tmp_path / "run")
    (tmp_path / "run" / "passes" / "torch" / "ranks" / "1" / "trace.json.gz").unlink()
    summary = summarise(load(tmp_path / "run"))
    assert summary["status"] == "partial" and summary["missing_ranks"] == [1]
    assert summary["throughput"] is not None  # the plain pass is whole
    assert summary["per_rank"][0]["wait_ms"] is None


def test_without_plain_pass_throughput_is_null(tmp_path: Path) -> None:
    shutil.copytree(RUNS / "resnet_w2", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "passes" / "plain")
    summary = summarise(load(tmp_path / "run"))
    assert summary["throughput"] is None and summary["profiler_overhead"]["torch"] is None
    assert summary["stragglers"]["window"] == "trace"
    assert "no_plain_pass" in {notice["kind"] for notice in summary["warnings"]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"status": "running"}, "the run has not ended, or its launcher was killed"),
        ({"status": "failed", "failure": {"message": "rank 1 raised\nmore"}}, "its status is failed: rank 1 raised"),
    ],
)
def test_why_a_run_has_no_trace(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.write_record(**changes)
    with pytest.raises(AnalysisError) as refused:
        load(run_dir.path)
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_an_unreadable_file_of_the_plain_pass_is_named(tmp_path: Path) -> None:
    """Its rank could be the late one, so the plain pass has no verdict: that of the trace holds, and it says so."""
    run_dir = RunDir(shutil.copytree(RUNS / "images_w2", tmp_path / "run"))
    broken = run_dir.for_pass("plain").rank(1)
    broken.steps.write_text("no Parquet")
    broken.slow_steps.write_text("[1")
    summary = summarise(load(run_dir.path))
    named = {item["file"]: item["rank"] for item in summary["warnings"] if item["kind"] == "file_unreadable"}
    assert named == {"steps.parquet": 1, "slow_steps.json": 1}
    assert summary["stragglers"]["window"] == "trace" and summary["throughput"] is None


@pytest.mark.parametrize("order", [[1, 0], [0, 0]])
def test_steps_out_of_order_or_twice_are_no_steps(order: list[int], tmp_path: Path) -> None:
    run_dir = RunDir(shutil.copytree(RUNS / "images_w2", tmp_path / "run"))
    path = run_dir.for_pass("plain").rank(1).steps
    table = pd.read_parquet(path)
    table.iloc[[*order, *range(2, len(table))]].to_parquet(path)
    summary = summarise(load(run_dir.path))
    assert any(item["kind"] == "file_unreadable" and item["rank"] == 1 for item in summary["warnings"])


def test_a_time_that_cannot_be_is_null(tmp_path: Path) -> None:
    run_dir = RunDir(shutil.copytree(RUNS / "images_w2", tmp_path / "run"))
    path = run_dir.for_pass("plain").rank(1).steps
    table = pd.read_parquet(path)
    table["device_ns"] = [-(2**63), 2**63 - 1, *table["device_ns"][2:]]
    table.to_parquet(path)
    assert read_steps(run_dir.for_pass("plain").rank(1))["device_ns"].to_pylist()[:2] == [None, None]


@pytest.mark.parametrize(
    ("numbers", "analysed"),
    [([5, 6, 7, 8], [6, 7, 8]), ([5, 6, 9, 10], [6, 10]), ([5, 7, 9, 11], [5, 7, 9, 11])],
    ids=["one window", "two windows", "only first steps"],
)
def test_the_first_step_of_each_window_is_left_out(numbers: list[int], analysed: list[int]) -> None:
    recorded = load(RUNS / "resnet_w2")
    steps = recorded.step_table
    old = np.unique(steps["step"])
    ranks = [
        msgspec.structs.replace(data, steps=data.steps.with_columns(step=np.array(numbers))) for data in recorded.ranks
    ]
    table = steps.with_columns(step=np.array(numbers)[np.searchsorted(old, steps["step"])])
    found, notices = step_choice.choose(ranks, table)
    assert found == analysed
    assert step_choice.choose(ranks, table, (numbers[0], numbers[0]))[0] == numbers, "it was asked for"
    assert [notice.details["steps"] for notice in notices] == [sorted({*numbers} - {*analysed})] * (found != numbers)
