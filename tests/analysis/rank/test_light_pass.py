"""A trace of device activities alone: our own H100 recordings without their CPU records give the same numbers."""

import gzip
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankscope.analysis import load, summarise
from rankscope.analysis.show.tables import tables

RUNS = Path(__file__).parents[2] / "data" / "runs"
OF_OPERATORS = ("cpu_op", "user_annotation", "gpu_user_annotation", "python_function")


def test_of_two_passes_the_one_that_disturbs_less_is_analysed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUNS / "resnet_w2", run)
    shutil.copytree(run / "passes" / "torch", run / "passes" / "light")
    for rank in (0, 1):
        path = run / "passes" / "light" / "ranks" / str(rank) / "steps.parquet"
        table = pq.read_table(path)
        shorter = pa.array([None if ns is None else ns - 1 for ns in table["device_ns"].to_pylist()], pa.int64())
        pq.write_table(table.set_column(table.column_names.index("device_ns"), "device_ns", shorter), path)
    analysis = load(run)
    summary = summarise(analysis)
    assert (analysis.pass_name, summary["pass"]) == ("light", "light")
    assert set(summary["profiler_overhead"]) == {"timed", "torch", "light", "nsys"}
    assert any(warning["kind"] == "light_pass" for warning in summary["warnings"])
    steps = [pq.read_table(run / "passes" / "plain" / "ranks" / str(r) / "steps.parquet").to_pydict() for r in (0, 1)]
    for row, table in zip(summary["memory"], steps, strict=True):
        assert row["peak_bytes"] == max(table["memory_peak_bytes"]) >= row["allocated_bytes"] > 0
        assert row["reserved_bytes"] == max(table["memory_reserved_bytes"])
    assert len(tables(analysis)["operators"]), "operators come from the torch pass"
    shutil.rmtree(run / "passes" / "light" / "ranks" / "1")
    assert load(run).pass_name == "torch", "a light pass that lacks a rank"


def test_a_late_host_recorded_on_two_h100s(tmp_path: Path) -> None:
    """40 ms of sleep a step on rank 1, of which the queue of its GPU hides a part.

    The torch pass made steps 1.35 times as long, so a light one had followed. Without the fault a plain step took
    32.10 ms on the same machine, so the fault costs 57.63 - 32.10 = 25.5 ms.
    """
    shutil.copytree(RUNS / "slow_host_w2", tmp_path / "run")
    found = summarise(load(tmp_path / "run"))
    assert (found["pass"], found["steps"]) == ("light", [12, 13, 14])
    late = found["stragglers"]
    assert (late["verdict"], late["rank"], late["cause"]) == ("persistent", 1, "host")
    assert (late["window"], late["steps_late"], late["steps_judged"]) == ("plain", 20, 20)
    (finding,) = [item for item in found["findings"] if item["id"] == "straggler_host"]
    assert finding["recoverable_ms"] == pytest.approx(57.63 - 32.10, rel=0.1)
    overhead = found["profiler_overhead"]
    assert overhead["torch"] > 1.3 > 1.15 > overhead["light"]
    assert {call["bytes"] for call in found["collectives"]} == {29380608, 29376512, 120864768}, "as rank.json has them"


@pytest.mark.parametrize("name", ["resnet_w2", "images_w2"])
def test_without_cpu_records_the_breakdown_is_the_same(name: str, tmp_path: Path) -> None:
    full = load(RUNS / name)
    calls = full.collectives()
    first = calls[(calls["step"] == full.steps_analysed[0]) & (calls["kind"] == "allreduce") & (calls["rank"] == 0)]
    sizes = first.sort_values("start_ns")["bytes"].tolist()
    shutil.copytree(RUNS / name, tmp_path / "run")
    for folder in (tmp_path / "run" / "passes" / "torch" / "ranks").iterdir():
        path = folder / "trace.json.gz"
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("cat") not in OF_OPERATORS]
        for event in trace["traceEvents"]:
            for key in ("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size", "Seq"):
                event.get("args", {}).pop(key, None)
        path.write_bytes(gzip.compress(json.dumps(trace).encode()))
        info = json.loads((folder / "rank.json").read_text()) | {"bucket_bytes": sizes}
        (folder / "rank.json").write_text(json.dumps(info))
    light = load(tmp_path / "run")
    assert light.steps_analysed == full.steps_analysed
    expected, found = summarise(full)["per_rank"], summarise(light)["per_rank"]
    for before, after in zip(expected, found, strict=True):
        for key in ("step_ms", "compute_ms", "comm_ms", "transfer_ms", "exposed_comm_ms", "copy_ms"):
            assert after[key] == pytest.approx(before[key], rel=0.02), key
        assert after["data_wait_ms"] == pytest.approx(before["data_wait_ms"], rel=0.1, abs=0.05)
    again = light.collectives()
    assert sorted(again[again["kind"] == "allreduce"]["bytes"].dropna()) == sorted(
        calls[calls["kind"] == "allreduce"]["bytes"].dropna()
    )
