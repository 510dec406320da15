"""Communication by dimension: what descriptions mean, and FSDP's layers against a sum by launch correlation."""

import gzip
import json
from collections import defaultdict
from pathlib import Path

import pytest

from rankscope.analysis import load, summarise
from rankscope.analysis.measure.dimensions import canonical

RUNTIME = ("cuda_runtime", "cuda_driver")
TRACES = Path(__file__).parents[2] / "data" / "traces"


@pytest.mark.parametrize(
    ("description", "dimension"),
    [
        ("mesh_tp", "tp"), ("mesh_dp_shard", "fsdp"), ("mesh_dp_replicate", "dp"), ("mesh_dp_shard_cp", "fsdp_cp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"), ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"), ("DATA_PARALLEL_GROUP", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp_cp"), ("EXPERT_MODEL_PARALLEL_GROUP", "ep"), ("tp:0", "tp"),
        ("default_pg", ""), ("undefined", ""), ("", ""), ("EMBEDDING_GROUP", "embedding_group"),
    ],
)  # fmt: skip
def test_descriptions(description: str, dimension: str) -> None:
    assert canonical(description) == dimension


def test_fsdp_by_layer_is_the_sum_of_the_kernels_that_its_annotations_launch() -> None:
    """Kernels of rank 0 and 1 by correlation -> the launch -> the FSDP annotation around it on its thread."""
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    for path in sorted((TRACES / "fsdp2_w2").glob("rank*.json.gz")):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        scopes = [
            event for event in events if str(event["name"]).startswith("FSDP::") and event["cat"] == "user_annotation"
        ]
        calls = {event["args"]["correlation"]: event for event in events if event.get("cat") in RUNTIME}
        for event in events:
            if event.get("cat") != "kernel" or "nccl" not in event["name"]:
                continue
            call = calls.get(event["args"]["correlation"])
            around = [
                scope
                for scope in scopes
                if call and scope["tid"] == call["tid"] and scope["ts"] <= call["ts"] < scope["ts"] + scope["dur"]
            ]
            if around:
                inner = max(around, key=lambda scope: scope["ts"])["name"]
                kind = "gather" if "AllGather" in event["name"] else "scatter"
                sums[inner.partition("(")[2].rstrip(")"), kind] += event["dur"]
    analysis = load(TRACES / "fsdp2_w2")
    found = summarise(analysis)
    rank_steps = 2 * len(found["steps"])
    assert [row["layer"] for row in found["sharded_layers"]] == [f"b.{number}" for number in range(6)]
    for row in found["sharded_layers"]:
        for kind in ("gather", "scatter"):
            assert row[f"{kind}_ms"] == pytest.approx(sums[row["layer"], kind] / 1000 / rank_steps, rel=1e-3), row
    assert [row["dimension"] for row in found["dimensions"]] == ["fsdp"]


@pytest.mark.parametrize(("sizes", "uneven", "fullest"), [([100, 300], 1.5, 1), ([200, 200], 1.0, None)])
def test_uneven_all_to_all(sizes: list[int], uneven: float, fullest: int | None, tmp_path: Path) -> None:
    """Each rank receives so many elements; the terminal says it if the fullest has clearly more than the mean."""
    for rank, size in enumerate(sizes):
        events = []
        for step in range(4, 8):
            start = step * 10_000
            mark = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "name": f"ProfilerStep#{step}"}
            events.append(mark | {"ts": start, "dur": 9_000})
            for number in range(3):
                at, ids = start + 1000 + 1000 * number, {"correlation": 10 * step + number}
                events.append(
                    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at}
                    | {"dur": 5, "args": ids}
                )
                metadata = {"Collective name": "all_to_allv", "In msg nelems": 400 - size, "Out msg nelems": size}
                metadata |= {
                    "dtype": "Float",
                    "Group size": 2,
                    "Process Group Name": "1",
                    "Process Group Ranks": "[0, 1]",
                }
                metadata |= {"Process Group Description": "expert", "device": rank, "stream": 20}
                events.append(
                    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv(ncclDevKernelArgs)", "pid": rank}
                    | {"tid": 20, "ts": at + 10, "dur": 500, "args": metadata | ids}
                )
        document = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}, "traceEvents": events}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    (row,) = summarise(load(tmp_path))["dimensions"]
    assert (row["dimension"], row["kinds"]) == ("ep", ["alltoall"])
    assert (row["uneven"], row["fullest_rank"]) == (uneven, fullest)
