"""Property tests on simulated timelines: what was planted is found, and nothing when nothing was planted."""

import os
from pathlib import Path

import numpy as np
import pytest

from rankscope.analysis import Analysis, load, summarise

from .simulated_jobs import FAULTS, MS, ORIGIN, Plan, Truth, random_plan, simulate

SEEDS = int(os.environ.get("RANKSCOPE_SEEDS", "25"))


def check_algebra(analysis: Analysis) -> None:
    """The identities that hold whatever happened."""
    calls = analysis.collectives()
    matched = calls[calls["matched"]]
    assert (matched["wait_ns"] + matched["transfer_ns"] == matched["end_ns"] - matched["start_ns"]).all()
    steps = analysis.steps()
    parts = ["compute_ns", "exposed_transfer_ns", "exposed_wait_ns", "copy_ns", "data_stall_ns", "host_gap_ns"]
    assert (steps[parts].sum(axis=1) == steps["step_ns"]).all()
    assert (steps[parts] >= 0).all().all()


def check_waits(analysis: Analysis, truth: Truth, plan: Plan) -> None:
    """Wait and transfer of every collective of the window, within what the jitter of its ends leaves open."""
    calls = analysis.collectives()
    calls = calls[calls["step"].notna()]
    assert len(calls) == len(truth.waits) and calls["matched"].all()
    calls = calls.sort_values("start_ns")
    seen: dict[tuple[int, int], int] = {}
    for step, rank, wait in zip(calls["step"].tolist(), calls["rank"].tolist(), calls["wait_ns"].tolist(), strict=True):
        bucket = seen[step, rank] = seen.get((step, rank), -1) + 1
        assert abs(wait - truth.waits[step, bucket, rank]) <= plan.end_jitter_ns + 2


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_is_found(seed: int, fault: str, tmp_path: Path) -> None:
    plan = random_plan(seed, fault)
    truth = simulate(plan, tmp_path)
    analysis = load(tmp_path)
    check_algebra(analysis)
    check_waits(analysis, truth, plan)
    found = summarise(analysis)["stragglers"]
    if fault == "none":
        assert found["verdict"] == "none"
        return
    assert (found["verdict"], found["rank"], found["cause"]) == ("persistent", plan.fault_rank, fault)
    if not plan.subgroups:  # else groups that end apart begin the next step apart, which adds to the lateness
        assert found["lateness_ms"] * MS == pytest.approx(plan.fault_ns, rel=0.1)


@pytest.mark.parametrize("fault", ["compute", "data", "host"])
def test_a_slow_host_is_not_a_slow_rank(fault: str, tmp_path: Path) -> None:
    plan = Plan(world=12, steps=5, buckets=2, seed=5, fault=fault, fault_ns=9 * MS, ranks_a_host=3)
    plan.fault_hosts = frozenset({2})
    plan.offsets_ns = {rank: 1000 * MS * (rank // 3) for rank in range(12)}
    simulate(plan, tmp_path)
    summary = summarise(load(tmp_path))
    late = {row["host"]: row for row in summary["hosts"] if row["late"]}
    assert list(late) == ["h2"] and late["h2"]["ranks"] == [6, 7, 8]
    assert late["h2"]["lateness_ms"] * MS == pytest.approx(plan.fault_ns, rel=0.1)
    assert {row["hosts"] for row in summary["collectives"]} == {4}


def test_a_slow_rank_is_not_a_slow_host(tmp_path: Path) -> None:
    plan = Plan(world=8, steps=5, buckets=2, seed=5, fault="compute", fault_rank=5, fault_ns=9 * MS, ranks_a_host=4)
    simulate(plan, tmp_path)
    summary = summarise(load(tmp_path))
    assert summary["stragglers"]["rank"] == 5
    assert [row["late"] for row in summary["hosts"]] == [False, False]


def test_one_late_step_is_intermittent(tmp_path: Path) -> None:
    plan = Plan(world=4, steps=6, buckets=3, seed=1, fault="host", fault_rank=2, fault_ns=8 * MS)
    plan.fault_steps = frozenset({7})
    simulate(plan, tmp_path)
    found = summarise(load(tmp_path))["stragglers"]
    assert (found["verdict"], found["rank"], found["cause"]) == ("intermittent", 2, "host")
    assert [item["step"] for item in found["per_step"]] == [7]


@pytest.mark.parametrize("offset_ns", [0, MS, -MS, 1000 * MS, 3_600_000 * MS])
@pytest.mark.parametrize("drift", [0.0, 20e-6, -50e-6])
def test_clocks_are_recovered(offset_ns: int, drift: float, tmp_path: Path) -> None:
    plan = Plan(world=4, steps=40, buckets=4, seed=7, fault="compute", fault_rank=3, fault_ns=6 * MS)
    plan.end_jitter_ns = 10_000
    plan.offsets_ns, plan.drifts = {2: offset_ns, 3: offset_ns}, {2: drift, 3: drift}
    simulate(plan, tmp_path)
    analysis = load(tmp_path)
    assert (analysis.verdict.verdict, analysis.verdict.rank, analysis.verdict.cause) == ("persistent", 3, "compute")
    clock, times = analysis.alignment, analysis.step_table
    for rank in (1, 2, 3):
        own = times["host_start_ns"][times["rank"] == rank]
        truth = plan.offsets_ns.get(rank, 0) + (own - ORIGIN) * plan.drifts.get(rank, 0.0)
        estimate = clock.offset_ns[rank] + (own - clock.origin) * clock.drift.get(rank, 0.0)
        assert np.percentile(np.abs(estimate - truth), 95) < 10_000


def test_a_missing_rank_leaves_waits_unknown(tmp_path: Path) -> None:
    simulate(Plan(world=3, steps=3, buckets=2, seed=3), tmp_path)
    (tmp_path / "rank1.json").unlink()
    summary = summarise(load(tmp_path))
    assert summary["status"] == "partial" and summary["missing_ranks"] == [1]
    assert summary["stragglers"]["verdict"] == "undetermined"
    assert all(row["wait_ms"] is None and row["exposed_wait_ms"] is None for row in summary["per_rank"])
    assert all(row["exposed_comm_ms"] > 0 for row in summary["per_rank"])
