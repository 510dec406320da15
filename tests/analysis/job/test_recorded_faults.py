"""Faults recorded on two H200s without a profiler (benchmarks/unprofiled.py), and NCCL's record of four more jobs."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.analysis import load, summarise
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.job.late_rank import JobVerdict, over_run
from rankscope.analysis.job.timed_calls import RankCalls, match

from .archives import unpack

DATA = Path(__file__).parents[2] / "data" / "unprofiled"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("unprofiled/two_h200", tmp_path_factory.mktemp("two_h200"))


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("unprofiled/two_h200_in_turn", tmp_path_factory.mktemp("two_h200_in_turn"))


# The mean plain step of the clean job, in the same processes, was 36.30 (gpu_bound) and 24.79 ms (host_bound).
@pytest.mark.parametrize(("case", "rank", "cause", "clean_ms"), [
    ("gpu_bound-compute_backward-1", 1, "compute", 36.22),
    ("gpu_bound-host-0", 1, "host", 36.30),
    ("gpu_bound-longer_batches-0", 1, "compute", 36.30),
    ("gpu_bound-copy-0", 0, "copy", 36.30),
    ("gpu_bound-two_at_once-0", 0, "data", 33.78),
    ("host_bound-host-1", 1, "host", 24.79),
])  # fmt: skip
def test_the_late_rank_and_its_cause(case: str, rank: int, cause: str, clean_ms: float, recorded: Path) -> None:
    summary = summarise(load(recorded / case))
    late = summary["stragglers"]
    assert (late["window"], late["verdict"], late["rank"], late["cause"]) == ("timed", "persistent", rank, cause)
    (finding,) = [item for item in summary["findings"] if item["id"] == f"straggler_{cause}"]
    lost_ms = summary["throughput"]["step_ms_mean"] - clean_ms
    assert finding["ranks"] == [rank] and 0 < finding["recoverable_ms"] <= lost_ms + max(2.5, 0.1 * lost_ms)


@pytest.mark.parametrize(("case", "rank", "cause", "part", "least"), [
    ("compute_forward", 1, "compute", "forward", 0.9),
    ("compute_backward", 1, "compute", "backward", 0.9),
    ("longer_batches", 1, "compute", "backward", 0.75),  # collectives that wait slow down the backward pass of rank 0
    ("copy", 0, "copy", "copies to the device", 0.9),
    ("none", None, None, None, 0.0),
])  # fmt: skip
def test_a_gain_is_what_the_step_loses_against_clean_steps_in_turn(
    case: str, rank: int | None, cause: str | None, part: str | None, least: float, in_turn: Path
) -> None:
    """Two H200s; each case has the clean steps of its own job, by the clock (truth.json)."""
    summary = summarise(load(in_turn / case))
    late = summary["stragglers"]
    assert (late["rank"], late["cause"], late["part"]) == (rank, cause, part)
    gains = [item["recoverable_ms"] for item in summary["findings"] if item["id"].startswith("straggler")]
    clean_ms = np.median(json.loads((in_turn / case / "truth.json").read_text())["clean"])
    lost_ms = summary["throughput"]["step_ms_p50"] - clean_ms
    assert least * lost_ms <= sum(gains) <= lost_ms + 0.3


@pytest.fixture(scope="module")
def host_bound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("unprofiled/two_h200_host_bound", tmp_path_factory.mktemp("two_h200_host_bound"))


@pytest.mark.parametrize(("case", "rank", "cause", "part"), [
    ("host_bound-host-1", 1, "host", "outside forward, backward and optimizer"),
    ("host_bound-loader-1", 0, "data", "waiting for the loader"),
    ("host_bound-loader-2", 0, "data", "waiting for the loader"),
    ("host_bound-compute_forward-0", 1, "compute", "forward"),
    ("host_bound-none-0", None, None, None),
])  # fmt: skip
def test_the_late_rank_of_a_job_whose_hosts_set_the_pace(
    case: str, rank: int | None, cause: str | None, part: str | None, host_bound: Path
) -> None:
    """Two H200s. The late rank's device follows its host; the other's has work queued, which is no merit of its rank.

    A gain is at most what the step loses against the clean steps of the same job, known to the range of three pairs of
    blocks (truth.json).
    """
    summary = summarise(load(host_bound / case))
    late = summary["stragglers"]
    assert (late["rank"], late["cause"], late["part"]) == (rank, cause, part)
    gains = [item["recoverable_ms"] for item in summary["findings"] if item["id"].startswith("straggler")]
    truth = json.loads((host_bound / case / "truth.json").read_text())
    lost = [summary["throughput"]["step_ms_p50"] - np.median(truth["clean"])]
    lost += [bad - good for bad, good in zip(truth["fault"], truth["clean"], strict=True)]
    assert sum(gains) <= max(lost) and (sum(gains) >= 0.9 * min(lost) or rank is None)


@pytest.mark.parametrize(("case", "rank", "period"), [
    ("host_bound-checkpoint-0", 0, 7), ("host_bound-late_every_5th-0", 1, 5),
])  # fmt: skip
def test_others_wait_for_a_slow_step_in_their_next_one(case: str, rank: int, period: int, host_bound: Path) -> None:
    summary = summarise(load(host_bound / case))
    slow = summary["slow_steps"]
    assert (slow["ranks"], slow["waiting"], slow["place"], slow["period"]) == ([rank], [1 - rank], "the host", period)
    truth = json.loads((host_bound / case / "truth.json").read_text())
    lost = [bad - good for bad, good in zip(truth["fault"], truth["clean"], strict=True)]
    assert min(lost) <= slow["lost_ms"] <= max(lost)


@pytest.mark.parametrize("case", ["gpu_bound-none-0", "host_bound-none-1"])
def test_nobody_is_late_in_a_clean_job(case: str, recorded: Path) -> None:
    summary = summarise(load(recorded / case))
    assert summary["stragglers"]["rank"] is None and summary["findings"] == []


@pytest.mark.parametrize(("case", "named"), [("gpu_bound-compute_backward-1", None), ("gpu_bound-two_at_once-0", 0)])
def test_of_ranks_that_share_a_gpu_only_a_slow_loader_is_named(case: str, named: int | None, recorded: Path) -> None:
    """As recorded the first has a late rank, too; here both ranks say that they have the same GPU."""
    folder = recorded / f"{case}-shared"
    shutil.copytree(recorded / case, folder)
    for path in folder.rglob("rank.json"):
        info = json.loads(path.read_text())
        path.write_text(json.dumps(info | {"device_uuid": "GPU-1"}))
    summary = summarise(load(folder))
    assert summary["stragglers"]["rank"] == named
    (warning,) = [item for item in summary["warnings"] if item["kind"] == "devices_shared"]
    assert warning["ranks"] == [[0, 1]]
    if named is None:
        assert "share a GPU" in summary["stragglers"]["reason"] and summary["findings"] == []


@pytest.mark.parametrize(("case", "place", "period", "clean_ms"), [
    ("gpu_bound-checkpoint-0", "save_checkpoint (save)", 7, 36.30),
    ("gpu_bound-evaluation-0", "evaluate", 10, 36.30),
])  # fmt: skip
def test_rare_work_of_one_rank_is_found_with_its_line(
    case: str, place: str, period: int, clean_ms: float, recorded: Path
) -> None:
    summary = summarise(load(recorded / case))
    slow = summary["slow_steps"]
    assert (slow["ranks"], slow["waiting"], slow["place"], slow["period"]) == ([0], [1], "the host", period)
    assert place in slow["where"]
    lost_ms = summary["throughput"]["step_ms_mean"] - clean_ms
    assert summary["findings"][0]["id"] == "slow_steps"
    assert summary["findings"][0]["recoverable_ms"] == pytest.approx(lost_ms, rel=0.1)


def flight(fault: str) -> JobVerdict:
    """The verdict over 48 steps of 14 all-reduces, after ten of warm-up."""
    calls, starts = {}, {}
    for rank in (0, 1):
        record: dict[str, Any] = json.loads(
            gzip.decompress((DATA / "flight" / f"fr_{fault}.r{rank}.json.gz").read_bytes())
        )
        rows = [row for row in record["rows"] if row[1] == "nccl:all_reduce"]
        calls[rank] = RankCalls(
            group=["0"] * len(rows),
            seq=[row[0] for row in rows],
            kind=[row[1] for row in rows],
            in_nelems=[row[2][0][0] for row in rows],
            out_nelems=[row[2][0][0] for row in rows],
            dtype=["Float"] * len(rows),
            duration_ns=[None if row[3] is None else round(row[3] * 1e6) for row in rows],
            enqueued_ns=[row[4] for row in rows],
        )
        begins = np.array([rows[at][4] for at in range(2, len(rows), 14)])
        starts[rank] = (np.arange(len(begins)), begins)
    found = match(calls, starts)
    steps = list(range(10, len(starts[0][0])))
    return over_run(found.lateness([0, 1], steps), float(np.median(np.diff(starts[0][1]))), Limits())


@pytest.mark.parametrize(("fault", "rank", "planted_ms"), [
    ("compute", 1, 1.6), ("compute_bwd", 1, 1.6), ("long", 1, None), ("none", None, None),
])  # fmt: skip
def test_nccl_s_record_alone_names_the_rank(fault: str, rank: int | None, planted_ms: float | None) -> None:
    found = flight(fault)
    assert found.rank == rank
    if planted_ms is not None:
        assert found.lateness_ns is not None and found.lateness_ns * 1e-6 == pytest.approx(planted_ms, rel=0.1)


@pytest.mark.parametrize(
    ("kind", "late_ms"), [("nccl:all_reduce", 4.0), ("nccl:sendrecv", 0.0), ("nccl:broadcast", 0.0)]
)
def test_only_calls_that_end_together_show_who_is_late(kind: str, late_ms: float) -> None:
    """Rank 1 comes 4 ms after rank 0 to one call in each of two steps."""
    calls = {
        rank: RankCalls(
            group=["0"] * 2, seq=[1, 2], kind=[kind] * 2, in_nelems=[8] * 2, out_nelems=[8] * 2, dtype=["Float"] * 2,
            duration_ns=[took] * 2, enqueued_ns=[15, 25],
        )
        for rank, took in ((0, 5_000_000), (1, 1_000_000))
    }  # fmt: skip
    starts = {rank: (np.array([0, 1]), np.array([10, 20])) for rank in (0, 1)}
    late = match(calls, starts).lateness([0, 1], [0, 1])
    assert (late / 1e6).tolist() == [[0, 0], [late_ms, late_ms]]
