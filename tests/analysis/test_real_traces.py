"""Real traces of 2 and 4 GPUs with planted faults (tests/data/traces); what was planted is known from the recording."""

import json
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rankscope.analysis import Analysis, load, summarise
from rankscope.analysis.core.table import Table
from rankscope.analysis.options import Options
from rankscope.analysis.pipeline import measure_ranks
from rankscope.analysis.rank.prepare import prepare
from rankscope.analysis.read.kineto import reader as kineto
from rankscope.analysis.read.rank_trace import RankTrace
from rankscope.analysis.tables.calls_and_steps import collectives

TRACES = Path(__file__).parents[1] / "data" / "traces"
MS = 1_000_000
# Verdict, rank, cause, and the lateness (ms) that an independent implementation measured in the judged steps.
KNOWN = {
    "big_baseline_w4": ("none", None, None, (0, 0.6)),
    "big_straggler_gpu_w4": ("persistent", 3, "compute", (6.1, 7.7)),
    "big_data_stall_rank0_w4": ("persistent", 0, "data", (139, 150)),
    "comm_bound_w4": ("none", None, None, (0, 0.08)),
}


@cache
def analysed(name: str, fast: bool = False) -> Analysis:
    return load(TRACES / name, options=Options(fast=fast, cache=False))


@cache
def traces(name: str) -> list[RankTrace]:
    return [kineto.read(path) for path in sorted((TRACES / name).glob("rank*"))]


@pytest.mark.parametrize("name", KNOWN)
def test_verdict(name: str, fast: bool) -> None:
    analysis = analysed(name, fast)
    verdict, rank, cause, (low, high) = KNOWN[name]
    found = analysis.verdict
    assert (found.verdict, found.rank, found.cause) == (verdict, rank, cause)
    late = analysis.segments()
    worst = late[late["step"].isin(analysis.steps_judged)].groupby("step")["lateness_ns"].max() / MS
    assert worst.between(low, high).all()
    assert analysis.steps_judged == [5, 6, 7] and analysis.alignment.causality_violations == 0


def test_left_over_kernels_are_paired_from_the_window_backwards() -> None:
    calls = analysed("big_baseline_w4").collectives()
    whole = calls[calls["matched"]]
    assert whole["call"].nunique() == 55  # 44 of the window, 11 left over; rank 1 is last in each
    assert (whole.loc[whole.groupby("call")["start_ns"].idxmax(), "rank"] == 1).all()
    in_steps = whole[whole["step"].notna()]
    transfer = in_steps.groupby(["step", "rank"])["transfer_ns"].sum().groupby("step").median() / MS
    assert transfer.between(3.1, 3.65).all()


def test_data_stall_is_measured_where_it_is() -> None:
    rows = {row["rank"]: row for row in summarise(analysed("big_data_stall_rank0_w4"))["per_rank"]}
    assert rows[0]["data_stall_ms"] == pytest.approx(144.6, rel=0.01)
    assert all(rows[rank]["data_stall_ms"] < 1 for rank in (1, 2, 3))


def test_communication_bound() -> None:
    summary = summarise(analysed("comm_bound_w4"))
    for row in summary["per_rank"]:
        assert 9.0 <= row["transfer_ms"] <= 9.25
    # The measured 6.6 ms a step counts the whole trace, left-over kernels included, over its four steps.
    assert min(row["exposed_comm_us"] for row in summary["totals"]) / 4000 == pytest.approx(6.6, rel=0.01)


@pytest.mark.parametrize(("name", "counts"), [("fsdp2_w2", {"allgather": 52, "reducescatter": 28})])
def test_several_streams_of_one_group(name: str, counts: dict[str, int]) -> None:
    calls = analysed(name).collectives()
    whole = calls[calls["matched"]].drop_duplicates("call")
    assert whole["kind"].value_counts().to_dict() == counts


def test_interleaved_groups_and_barriers() -> None:
    calls = analysed("two_groups_w2").collectives()
    whole = calls[calls["matched"]].drop_duplicates("call")
    counts = whole.groupby(["group", "kind"], observed=True).size().to_dict()
    assert counts == {("0", "allreduce"): 44, ("1", "allreduce"): 4, ("1", "barrier"): 4, ("2", "allreduce"): 4}


def test_graph_launches_belong_to_their_steps() -> None:
    steps = analysed("cuda_graphs_w2").steps()
    assert (steps["covered"] == steps["launches"]).all() and (steps["records"] > 2 * steps["launches"]).all()


@pytest.mark.parametrize("name", ["big_straggler_gpu_w4", "big_baseline_w4"])
@pytest.mark.parametrize("offset_ns", [MS, -MS, 1000 * MS, -1000 * MS, 3_600_000 * MS])
@pytest.mark.parametrize("drift", [0.0, 20e-6, -20e-6, 50e-6, -50e-6])
def test_injected_clocks_change_nothing(name: str, offset_ns: int, drift: float) -> None:
    """One host of two (ranks 2 and 3) has another clock: waits and verdict stay, the offset is recovered."""
    before = analysed(name)
    origin = int(before.step_table["start_ns"].min())
    shifted = [_shifted(trace, origin, offset_ns, drift if trace.rank in (2, 3) else 0.0) for trace in traces(name)]
    after, _ = measure_ranks([prepare(trace) for trace in shifted], Options())
    assert (after.verdict.verdict, after.verdict.rank, after.verdict.cause) == (
        before.verdict.verdict,
        before.verdict.rank,
        before.verdict.cause,
    )
    a, b = (collectives(item).to_pandas().sort_values(["rank", "call"]) for item in (before, after))
    assert list(a["matched"]) == list(b["matched"])
    moved = np.abs(a["wait_ns"].dropna().to_numpy() - b["wait_ns"].dropna().to_numpy())
    assert np.percentile(moved.astype(float), 95) < 10_000
    for rank in (2, 3):
        times = before.step_table["start_ns"][before.step_table["rank"] == rank]
        truth = before.alignment.offset_ns[rank] + offset_ns + (times - origin) * drift
        truth = truth + (times - before.alignment.origin) * before.alignment.drift.get(rank, 0.0)
        clock = after.alignment
        estimate = clock.offset_ns[rank] + (times - clock.origin) * clock.drift.get(rank, 0.0)
        assert np.percentile(np.abs(estimate - truth), 95) < 10_000


def _shifted(trace: RankTrace, origin: int, offset_ns: int, drift: float) -> RankTrace:
    if trace.rank not in (2, 3):
        return trace

    def move(table: Table) -> Table:
        start = table["start"]
        return table.with_columns(start=start + offset_ns + np.rint((start - origin) * drift).astype(np.int64))

    tables = {name: move(getattr(trace, name)) for name in ("device", "launches", "host")}
    return msgspec.structs.replace(trace, **tables)


def test_an_hour_between_two_files(tmp_path: Path) -> None:
    """The same through the file: another baseTimeNanoseconds, as a host with a wrong clock would write."""
    import gzip

    for path in (TRACES / "cuda_graphs_w2").glob("rank*"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        if "rank1" in path.name:
            document["baseTimeNanoseconds"] += 3_600_000 * MS
        (tmp_path / path.name.removesuffix(".gz")).write_text(json.dumps(document))
    summary = summarise(load(tmp_path))
    here = analysed("cuda_graphs_w2")
    assert summary["alignment"]["offset_us"]["1"] == pytest.approx(3.6e9 + here.alignment.offset_ns[1] / 1000, abs=0.01)
    assert [notice["kind"] for notice in summary["warnings"] if notice["level"] == "warning"] == ["clock_offset"]
    assert summary["stragglers"]["rank"] == here.verdict.rank
