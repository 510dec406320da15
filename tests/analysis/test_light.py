"""A trace of device activities alone: our own H100 recordings without their CPU records give the same numbers."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from rankscope.analysis import load, summarise

RUNS = Path(__file__).parents[1] / "data" / "runs"
OF_OPERATORS = ("cpu_op", "user_annotation", "gpu_user_annotation", "python_function")


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
