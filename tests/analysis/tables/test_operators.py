"""Tables by operator, module, kernel and bucket: a hand-worked nest of operators, and sums over real traces."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis import Analysis, load
from rankscope.analysis.show.tables import tables
from rankscope.analysis.tables.buckets import buckets
from rankscope.analysis.tables.operators import kernels_by_name, modules, operators

KERNEL = {"device": 0, "stream": 7}
OCCUPANCY = {
    1: {"est. achieved occupancy %": 80},
    2: {"est. achieved occupancy %": 0},
    3: {"est. achieved occupancy %": 10},
}
TRACES = Path(__file__).parents[2] / "data" / "traces"


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 9, "tid": tid, "args": args}


@pytest.fixture
def nest(tmp_path: Path) -> Analysis:
    """aten::a [0, 100) us holds another [10, 50) and aten::b [60, 80).

    Kernels of 5, 7 and 9 us are launched at 20, 70 and 90.
    """
    events = [
        event("user_annotation", "ProfilerStep#4", 0, 200),
        event("user_annotation", "module: head", 55, 30),
        event("cpu_op", "aten::a", 0, 100),
        event("cpu_op", "aten::a", 10, 40),
        event("cpu_op", "aten::b", 60, 20),
    ]
    for number, (launched, took) in enumerate([(20, 5), (70, 7), (90, 9)], start=1):
        events.append(event("cuda_runtime", "cudaLaunchKernel", launched, 1, correlation=number))
        events.append(
            event("kernel", f"k{number % 2}", launched + 2, took, 7, correlation=number, **KERNEL, **OCCUPANCY[number])
        )
    trace = {"traceEvents": events, "distributedInfo": {"rank": 0, "world_size": 1}, "baseTimeNanoseconds": 0}
    (tmp_path / "rank0.json").write_text(json.dumps(trace))
    return load(tmp_path)


def test_nested_operators_by_hand(nest: Analysis) -> None:
    rows = {row["name"]: row for row in operators(nest).to_pandas().to_dict("records")}
    a, b = rows["aten::a"], rows["aten::b"]
    assert (a["calls"], a["cpu_ns"], a["self_cpu_ns"]) == (2, 100_000, 80_000)  # the module is no operator, but nested
    assert (a["device_ns"], a["self_device_ns"]) == (21_000, 14_000)
    assert (b["calls"], b["cpu_ns"], b["device_ns"], b["self_device_ns"]) == (1, 20_000, 7_000, 7_000)
    (head,) = modules(nest).to_pandas().to_dict("records")
    assert (head["name"], head["device_ns"], head["self_device_ns"]) == ("module: head", 7_000, 0)


def test_occupancy_is_weighted_by_time_and_0_is_unknown(nest: Analysis) -> None:
    """k1 ran 5 us at 80 % and 9 us at 10 %: 35 %; of k0 the profiler could not tell."""
    rows = {row["name"]: row for row in kernels_by_name(nest).to_pandas().to_dict("records")}
    assert rows["k1"]["occupancy"] == pytest.approx((5 * 0.8 + 9 * 0.1) / 14)
    assert rows["k1"]["calls"] == 2 and math.isnan(rows["k0"]["occupancy"])


def test_sums_of_a_real_trace() -> None:
    analysis = load(TRACES / "big_baseline_w4")
    table, found = kernels_by_name(analysis).to_pandas(), analysis.kernels()
    inside = found[found["step"].isin(analysis.steps_analysed)]
    for rank, rows in table.groupby("rank"):
        own = inside[inside["rank"] == rank]
        assert rows["total_ns"].sum() == (own["end_ns"] - own["start_ns"]).sum() and rows["calls"].sum() == len(own)
        by_operator = operators(analysis).to_pandas().query("rank == @rank")
        launched = rows[rows["class"] != "communication"]["total_ns"].sum()  # NCCL's launches are in no operator here
        assert by_operator["self_device_ns"].sum() == launched


def test_buckets_in_ready_order() -> None:
    """11 all-reduces a step, which together hold the gradients of 93,405,184 parameters in fp32."""
    analysis = load(TRACES / "big_baseline_w4")
    table = buckets(analysis).to_pandas()
    for _, rows in table.groupby(["step", "rank"]):
        assert rows["bucket"].tolist() == list(range(11)) and rows["bytes"].sum() == 4 * 93_405_184
        assert rows["ready_ns"].is_monotonic_increasing and rows["ready_ns"].min() > 0
    factor = 2 * 3 / 4
    assert (table["busbw_GBs"] - table["bytes"] / table["transfer_clockfree_ns"] * factor).abs().max() < 1e-9
    assert table["of_ceiling"].isna().all()


def test_every_table_can_be_written_of_a_cpu_trace() -> None:
    analysis = load(Path(__file__).parents[2] / "data" / "cases" / "N05-gloo-cpu")
    written = {name: table.to_arrow().num_rows for name, table in tables(analysis).items()}
    assert written["kernels_by_name"] == 0 and written["modules"] == 0
