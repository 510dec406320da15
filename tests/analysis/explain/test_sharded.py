"""Findings about FSDP's all-gathers promise what a model of the job saves with the fix, and no more."""

import json
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis import load, summarise
from rankscope.analysis.core.json import Json

US, MS = 1, 1000  # of Chrome traces
LAYERS, GATHER, COMPUTE = 6, 2 * MS, 5 * MS


def simulate(folder: Path, *, prefetch: bool, again: bool) -> float:
    """Write two equal ranks of four steps; returns the step (ms).

    Each layer is gathered before it computes, in the backward pass again (`again`). Without `prefetch` the gather
    begins when the layer before has computed, with it when that layer begins to compute.
    """
    folder.mkdir()
    events: list[Json] = []
    now, number = 10 * MS, 0

    def kernel(name: str, start: int, took: int, stream: int, scope: str | None, **args: Any) -> None:
        nonlocal number
        number += 1
        launch = start - 100 * US
        if scope is not None:
            add("user_annotation", scope, launch - 5 * US, 20 * US, 1)
        add("cuda_runtime", "cudaLaunchKernel", launch, 5 * US, 1, correlation=number)
        add("kernel", name, start, took, stream, device=0, stream=stream, correlation=number, **args)

    def add(category: str, name: str, start: int, took: int, tid: int, **args: Any) -> None:
        pid = 0 if category == "kernel" else 1
        found = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": took}
        events.append(found | {"args": args})

    metadata = {"Collective name": "_allgather_base", "In msg nelems": 1000, "Out msg nelems": 2000, "dtype": "Float"}
    metadata |= {"Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    lengths = []
    for step in range(4, 8):
        began, sent = now, now
        passes = [(layer, True) for layer in range(LAYERS)] + [(layer, again) for layer in reversed(range(LAYERS))]
        opened = now  # when the compute before began
        for layer, gathers in passes:
            ready = now
            if gathers:
                start = max(sent, opened if prefetch else now)
                scope = f"FSDP::all_gather (layers.{layer})"
                kernel("ncclDevKernel_AllGather_RING_LL", start, GATHER, 20, scope, **metadata)
                sent = ready = start + GATHER
            opened = max(now, ready)
            kernel("gemm", opened, COMPUTE, 7, None)
            now = opened + COMPUTE
        kernel("adam", now, MS, 7, None)
        now += MS
        add("user_annotation", f"ProfilerStep#{step}", began - 200 * US, now - began, 1)
        lengths.append(now - began)
    for rank in range(2):
        document = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}, "traceEvents": events}
        (folder / f"rank{rank}.json").write_text(json.dumps(document))
    return lengths[-1] / MS


def gains(folder: Path) -> dict[str, Json]:
    return {item["id"]: item for item in summarise(load(folder))["findings"]}


def test_a_late_gather_and_a_second_one_are_named_with_what_the_fix_saves(tmp_path: Path) -> None:
    late = simulate(tmp_path / "late", prefetch=False, again=True)
    early = simulate(tmp_path / "early", prefetch=True, again=True)
    once = simulate(tmp_path / "once", prefetch=False, again=False)
    found = gains(tmp_path / "late")
    assert found["late_prefetch"]["recoverable_ms"] == pytest.approx(late - early, rel=0.05)
    assert found["gathered_again"]["recoverable_ms"] == pytest.approx(late - once, rel=0.05)
    assert found["gathered_again"]["evidence"]["gathers_per_step"] == LAYERS
    assert not {"late_prefetch", "gathered_again"} & gains(tmp_path / "early").keys()
    assert "gathered_again" not in gains(tmp_path / "once")
