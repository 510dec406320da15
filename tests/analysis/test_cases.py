"""The validation cases of tests/data/cases: small odd inputs with exact answers, by the rules of DEFINITIONS.md."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis import Analysis, AnalysisError, Options, load, summarise
from rankscope.analysis.core.record_kinds import COMMUNICATION, COMPUTE
from rankscope.analysis.show.summary import error_summary

CASES = sorted((Path(__file__).parents[1] / "data" / "cases").glob("*-*"))
US = 1000

# Their word -> ours, where they differ.
KINDS = {"unmatched_steps": "unmatched_steps", "encoding_invalid": "invalid_bytes_replaced"}
CAUSES = {"input": "data", "compute": "compute"}


def run(case: Path, fast: bool) -> tuple[Analysis | None, dict[str, Any]]:
    # expected.json lies in the folder; it is not a trace and must not disturb
    try:
        analysis = load(case, options=Options(fast=fast))
    except AnalysisError as error:
        return None, error_summary(str(error), error.notices)
    return analysis, summarise(analysis)


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_case(case: Path, fast: bool) -> None:
    expected = json.loads((case / "expected.json").read_text())
    analysis, summary = run(case, fast)
    other = expected.get("acceptable_instead", {})
    assert summary["status"] in {expected["outcome"], other.get("outcome")}
    if summary["status"] == other.get("outcome") and other.get("outcome") != expected["outcome"]:
        expected |= {"errors": [], "missing_ranks": [], "cross_rank": {}} | other
    _check_notices(expected, summary)
    assert summary.get("missing_ranks", []) == expected.get("missing_ranks", summary.get("missing_ranks", []))
    if analysis is None:
        assert not expected.get("ranks")
        return
    common = expected.get("common_steps")
    for rank, values in expected.get("ranks", {}).items():
        for name, value in values.items():
            if name != "note":
                found = (
                    _of_steps(analysis, int(rank), name, common)
                    if common
                    else _of_rank(analysis, summary, int(rank), name)
                )
                assert found == (
                    None if value is None else pytest.approx(value, abs=1e-3 if name.endswith("_us") else 1e-6)
                ), (rank, name)
    _check_steps(expected, analysis, summary)
    _check_across(expected, analysis, summary)
    _check_loader(expected, summary)


def _check_notices(expected: dict[str, Any], summary: dict[str, Any]) -> None:
    for wanted in expected.get("warnings", []) + expected.get("errors", []):
        kind = KINDS.get(wanted["kind"], wanted["kind"])
        found = [notice for notice in summary["warnings"] if notice["kind"] == kind]
        assert found, (kind, summary["warnings"])
        if kind in ("rank_from_file_name", "no_steps"):
            assert len(found) == wanted["count"]
            continue
        same = [
            notice
            for notice in found
            if all(_equal(notice.get(key), value) for key, value in wanted.items() if key != "kind")
        ]
        assert same, (wanted, found)


def _equal(found: Any, wanted: Any) -> bool:
    return bool(found == wanted)


def _of_rank(analysis: Analysis, summary: dict[str, Any], rank: int, name: str) -> Any:
    data = next(item for item in analysis.ranks if item.rank == rank)
    total = next(item for item in summary["totals"] if item["rank"] == rank)
    kernels = data.kernels
    duration = kernels["end"] - kernels["start"]
    derived: dict[str, Callable[[], Any]] = {
        "cpu_compute_us": lambda: total["compute_us"],
        "comm_sum_us": lambda: duration[kernels["role"] == COMMUNICATION].sum() / US,
        "compute_sum_us": lambda: duration[kernels["role"] == COMPUTE].sum() / US,
        "utilization": lambda: total["busy_us"] / total["span_us"],
        "kernel_count": lambda: len(kernels),
        "memcpy_bandwidth_gbs": lambda: None,  # never read from the trace, so never infinite
        "comm_by_collective_us": lambda: _by_kind(analysis, rank, exposed=False),
        "exposed_by_collective_us": lambda: _by_kind(analysis, rank, exposed=True),
        "launch_latency_us": lambda: _latency(analysis, rank),
    }
    return derived[name]() if name in derived else total[name]


def _by_kind(analysis: Analysis, rank: int, *, exposed: bool) -> dict[str, float]:
    rows = analysis.collectives()
    rows = rows[rows["rank"] == rank]
    values = rows["exposed_ns"] if exposed else rows["end_ns"] - rows["start_ns"]
    return {str(kind): part / US for kind, part in values.groupby(rows["kind"], observed=True).sum().items()}


def _latency(analysis: Analysis, rank: int) -> dict[str, float]:
    rows = analysis.kernels()
    rows = rows[rows["rank"] == rank]
    return {
        str(key): (start - launch) / US
        for key, start, launch in zip(rows["correlation"], rows["start_ns"], rows["launch_ns"], strict=True)
    }


def _of_steps(analysis: Analysis, rank: int, name: str, steps: list[int]) -> float:
    table = analysis.steps()
    rows = table[(table["rank"] == rank) & table["step"].isin(steps)]
    if name == "overlap_us":
        return float((rows["comm_ns"] - rows["exposed_comm_ns"]).sum() / US)
    return float(rows[name.removesuffix("_us") + "_ns"].sum() / US)


def _check_steps(expected: dict[str, Any], analysis: Analysis, summary: dict[str, Any]) -> None:
    table = analysis.steps()
    first = table[table["rank"] == table["rank"].min()].set_index("step")
    if "step_count" in expected:
        assert len(first) == expected["step_count"]
    for step, values in expected.get("steps", {}).items():
        row = first.loc[int(step)]
        known = {
            "step_time_us": (row["host_end_ns"] - row["host_start_ns"]) / US,
            "compute_us": row["compute_ns"] / US,
            "comm_us": row["comm_ns"] / US,
            "exposed_comm_us": row["exposed_comm_ns"] / US,
            "overlap_ratio": 1 - row["exposed_comm_ns"] / row["comm_ns"] if row["comm_ns"] else None,
        }
        for name, value in values.items():
            assert known[name] == (None if value is None else pytest.approx(value)), (step, name)
    if "steady_steps" in expected:
        assert summary["steps"] == expected["steady_steps"]
        steady = first[first["analysed"]]
        assert (steady["host_end_ns"] - steady["host_start_ns"]).mean() / US == expected["mean_step_time_us"]
        assert steady["comm_ns"].mean() / US == expected["mean_comm_us"]
        assert steady["exposed_comm_ns"].mean() / US == expected["mean_exposed_comm_us"]
    for rank, value in expected.get("coverage", {}).items():
        rows = table[table["rank"] == int(rank)]
        assert rows["covered"].sum() / rows["launches"].sum() == pytest.approx(value)


def _check_across(expected: dict[str, Any], analysis: Analysis, summary: dict[str, Any]) -> None:
    calls = analysis.collectives()
    for rank, value in expected.get("clock_offset_us", {}).items():
        assert summary["alignment"]["offset_us"][rank] == pytest.approx(value, abs=1e-3)
    own = calls[calls["rank"] == calls["rank"].min()]
    if "device_collective_count" in expected:
        assert len(own) == expected["device_collective_count"]
        assert own["bytes"].isna().sum() == expected["collectives_without_size"]
    if "collective_count" in expected:
        assert len(own) == expected["collective_count"]
    across = expected.get("cross_rank", {})
    if across is None:
        assert calls["wait_ns"].isna().all() if calls["wait_ns"].dtype != "int64" else not len(calls)
        assert summary["stragglers"]["verdict"] == "undetermined"
        return
    for wanted in across.get("collectives", []):
        group, _, seq = wanted["key"].partition("#")
        rows = calls[(calls["group"] == group) & (calls["seq"] == int(seq))].set_index("rank")
        assert (rows["transfer_ns"] / US == wanted["transfer_us"]).all()
        assert {str(rank): wait / US for rank, wait in rows["wait_ns"].items()} == wanted["wait_us"]
    for rank, value in across.get("total_wait_us", {}).items():
        assert calls[calls["rank"] == int(rank)]["wait_ns"].sum() / US == value
    if "straggler" in across:
        assert summary["stragglers"]["rank"] == across["straggler"]
    if "straggler_cause" in across:
        assert summary["stragglers"]["cause"] == CAUSES[across["straggler_cause"]]
    if "cause_excess_us_per_step" in across:
        assert summary["stragglers"]["lateness_ms"] == across["cause_excess_us_per_step"] / US


def _check_loader(expected: dict[str, Any], summary: dict[str, Any]) -> None:
    names = {
        "loader_wait_us": "wait_ms",
        "steady_mean_wait_us": "steady_mean_ms",
        "median_wait_us": "median_ms",
        "startup_wait_us": "startup_ms",
        "epoch_restart_wait_us": "epoch_restart_ms",
    }
    for rank, values in expected.get("loader", {}).items():
        found = next(row for row in summary["loader"] if row["rank"] == int(rank))
        for name, value in values.items():
            if name == "outlier_steps":
                assert found[name] == value
            elif name in names:
                assert found[names[name]] == pytest.approx(value / US)
