"""`summary.json`: its published schema, and that a run without a trace has the same keys as one with."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from rankscope.analysis import load, summarise
from rankscope.analysis.show.summary import error_summary
from rankscope.analysis.show.summary_schema import ErrorSummary, Summary, schema_text

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data"
PLACES = ("runs/resnet_w2", "runs/images_w2", "traces/two_groups_w2", "traces/fsdp2_w2")


@pytest.mark.parametrize("place", PLACES)
def test_summaries_follow_the_published_schema(place: str) -> None:
    found = summarise(load(DATA / place))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    msgspec.convert(found, Summary, strict=True)


def test_the_published_schema_is_that_of_the_code() -> None:
    assert (ROOT / "docs" / "summary.schema.json").read_text() == schema_text(), "make docs"
    msgspec.convert(error_summary("nothing", []), ErrorSummary)


@pytest.mark.parametrize("name", ["resnet_w2", "images_w2", "slow_host_w2"])
def test_the_python_api_gives_the_findings_of_the_report(name: str) -> None:
    analysis = load(DATA / "runs" / name)
    assert msgspec.to_builtins(analysis.findings) == summarise(analysis)["findings"]
    assert any("traced_ms" in item.evidence or item.recoverable_ms == 0 for item in analysis.findings)


def test_a_run_without_a_trace_has_every_key_of_one_with(tmp_path: Path) -> None:
    run = shutil.copytree(DATA / "runs" / "resnet_w2", tmp_path / "run")
    shutil.rmtree(run / "passes" / "torch")
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("- torch\n", "", 1))
    plain, traced = summarise(load(run)), summarise(load(DATA / "runs" / "resnet_w2"))
    assert set(plain) == set(traced)
    assert plain["throughput"] == traced["throughput"] and plain["source"] is None
    assert plain["stragglers"]["verdict"] == traced["stragglers"]["verdict"] == "rotating"  # both from the plain pass
    assert plain["stragglers"]["traced"]["verdict"] == "undetermined"


def test_a_broken_config_costs_only_what_needs_it(tmp_path: Path) -> None:
    run = shutil.copytree(DATA / "runs" / "slow_host_w2", tmp_path / "run")
    (run / "config.yaml").write_text("world_size: [")
    broken, whole = summarise(load(run)), summarise(load(DATA / "runs" / "slow_host_w2"))
    assert broken["stragglers"] == whole["stragglers"] and broken["slow_steps"] == whole["slow_steps"]
    unknown = {"samples_per_s": None, "mfu": None}
    assert broken["throughput"] == whole["throughput"] | unknown
    assert "config_unreadable" in [notice["kind"] for notice in broken["warnings"]]


def test_a_clock_that_was_set_is_said(tmp_path: Path) -> None:
    run = shutil.copytree(DATA / "runs" / "resnet_w2", tmp_path / "run")
    info = run / "passes" / "torch" / "ranks" / "1" / "rank.json"
    rank = json.loads(info.read_text())
    probe = {"time_ns": 10**18, "offset_ns": 0, "rtt_ns": 1000}
    later = {"time_ns": 10**18 + 10**10 - 3600 * 10**9, "offset_ns": -3600 * 10**9, "rtt_ns": 1000}
    info.write_text(
        json.dumps(rank | {"clock_probes": [rank["clock_probes"][0] | probe, rank["clock_probes"][0] | later]})
    )
    (said,) = [notice for notice in summarise(load(run))["warnings"] if notice["kind"] == "clock_stepped"]
    assert said["rank"] == 1 and "-3600.0 s" in said["message"]
