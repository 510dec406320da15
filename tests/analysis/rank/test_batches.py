"""Kernels that torch launches in a batch: what they are, how much they move, and between which ranks.

The recordings are of two NCCL ranks (torch 2.11) that share one GPU, so their times say nothing, but their records do.
"""

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis import load, summarise

JOBS = Path(__file__).parents[2] / "data" / "shared_gpu"
KINDS = {
    "allreduce": "allreduce",
    "_allgather_base": "allgather",
    "_reduce_scatter_base": "reducescatter",
    "all_to_allv": "alltoall",
    "all_to_all": "alltoall",
}


def by_launch(path: Path) -> dict[str, float]:
    """Return the time of NCCL's kernels (us) by what launched them, from the events alone.

    That is the record around the launch. If there is none, it is what was recorded before the range `nccl:coalesced`
    around the launch and after the range before.
    """
    events = [event for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if event["ph"] == "X"]
    launch = {
        event["args"]["correlation"]: event for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    records = sorted((e for e in events if e["name"] == "record_param_comms"), key=lambda e: float(e["ts"]))
    batches = sorted(
        (e for e in events if e["name"] == "nccl:coalesced" and e["cat"] == "user_annotation"),
        key=lambda e: float(e["ts"]),
    )
    found: defaultdict[str, float] = defaultdict(float)
    steps = [e for e in events if str(e["name"]).startswith("ProfilerStep")]
    first = min(float(e["ts"]) for e in steps)
    for kernel in events:
        if kernel.get("cat") != "kernel" or "nccl" not in kernel["name"]:
            continue
        call = launch[kernel["args"]["correlation"]]
        assert float(call["ts"]) >= first
        around = [e for e in records if _holds(e, call)]
        if around:
            found[KINDS[around[-1]["args"]["Collective name"]]] += kernel["dur"]
            continue
        (batch,) = [number for number, e in enumerate(batches) if _holds(e, call)]
        since = float(batches[batch - 1]["ts"]) if batch else 0.0
        names = {e["args"]["Collective name"] for e in records if since < float(e["ts"]) < float(batches[batch]["ts"])}
        names -= {"wait"}
        found[names.pop() if len(names) == 1 else "sendrecv"] += kernel["dur"]
    return found


def _holds(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    return bool(
        outer["tid"] == inner["tid"] and float(outer["ts"]) <= float(inner["ts"]) < float(outer["ts"]) + outer["dur"]
    )


@pytest.mark.parametrize("job", ["pp_gpipe", "pp_1f1b", "moe", "fsdp", "tp"])
def test_every_kernel_counts_as_what_launched_it(job: str) -> None:
    calls = load(JOBS / job).calls
    for rank in (0, 1):
        own = calls.take(calls["rank"] == rank)
        found: Counter[str] = Counter()
        for kind, took in zip(own.texts("kind"), (own["end"] - own["start"]).tolist(), strict=True):
            found[str(kind)] += took
        wanted = by_launch(JOBS / job / f"rank{rank}.json.gz")
        assert {kind: ns / 1000 for kind, ns in found.items()} == pytest.approx(wanted, abs=0.5)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_messages_of_a_pipeline_are_paired(schedule: str) -> None:
    """Two stages and 8 micro-batches, whose activations are 16,384 floats. 1F1B sends and receives at once."""
    found = summarise(load(JOBS / f"pp_{schedule}"))
    (pipeline,) = found["pipelines"]
    assert [stage["rank"] for stage in pipeline["stages"]] == [0, 1]
    assert (pipeline["micro_batches"], pipeline["even_share"]) == (8, round(1 / 9, 4))
    kinds = {row["kind"]: row for row in found["collectives"]}
    assert {row["bytes"] for row in kinds.values()} == {65_536}
    steps = len(found["steps"])
    # A call is one message, or with 1F1B two that cross: 8 forward and 8 backward in each step.
    messages = {kind: row["count"] for kind, row in kinds.items()}
    assert messages["send"] + 2 * messages.get("sendrecv", 0) == 16 * steps
    assert all(row["unmatched"] == 0 for row in kinds.values())
    assert set(kinds) == ({"send", "recv"} if schedule == "gpipe" else {"send", "recv", "sendrecv"})
