"""A record of the device belongs to a collective if the collective's own record launched it, whatever its name is."""

from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis import Options, load, summarise

from ..made_traces import MadeTrace

GATHER = {
    "Collective name": "_allgather_base", "In msg nelems": 500, "Out msg nelems": 1000, "dtype": "Float",
    "Group size": 2, "Process Group Name": "1", "Process Group Description": "mesh_fsdp",
    "Process Group Ranks": "[0, 1]",
}  # fmt: skip


def made(rank: int, shift: float = 0.0) -> MadeTrace:
    trace = MadeTrace(rank, world=2)
    for step in range(3):
        start = 1000.0 * step
        trace.step(step, start, 990)
        trace.kernel(start + 100 + shift, 200)
        trace.add("cpu_op", "c10d::_allgather_base_", start + 20, 40, **{"External id": 7})
        trace.add("cpu_op", "record_param_comms", start + 22, 36, **GATHER)
        trace.add("cpu_op", "aten::copy_", start + 24, 6)  # flattens: launched by an operator inside the record
        copy: dict[str, Any] = {"category": "gpu_memcpy", "call": "cudaMemcpyAsync", "bytes": 2000}
        trace.kernel(start + 310 + shift, 10, "Memcpy DtoD (Device -> Device)", launched=start + 26, **copy)
        for at in (400, 430):  # the collective: one copy for each peer
            call: dict[str, Any] = {**copy, "call": "cudaMemcpyBatchAsync", "stream": 20}
            trace.kernel(start + at, 20, "Memcpy PtoP (Device -> Device)", launched=start + 40 + at / 100, **call)
        trace.kernel(start + 500, 10, "Memcpy HtoD (Pageable -> Device)", launched=start + 480, **copy)
        trace.kernel(start + 900, 50)
    return trace


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for rank in (0, 1):
        made(rank).write(tmp_path / f"rank{rank}.json")
    return tmp_path


def test_a_copy_engine_s_gather_is_communication(job: Path, fast: bool) -> None:
    """Per step: compute 250, gather from 400 to 450, other copies 20 us."""
    analysis = load(job, options=Options(cache=False))
    calls = analysis.collectives()
    assert set(calls["kind"]) == {"allgather"} and len(calls) == 2 * 3
    assert set(calls["end_ns"] - calls["start_ns"]) == {50_000}
    assert set(calls["bytes"]) == {4000} and set(calls["ranks"] if "ranks" in calls else [2]) == {2}
    steps = analysis.step_table
    assert set(steps["comm_ns"].tolist()) == {50_000} and set(steps["copy_ns"].tolist()) == {20_000}
    assert set(steps["compute_ns"].tolist()) == {250_000}
    (row,) = summarise(analysis)["dimensions"]
    assert (row["dimension"], row["kinds"], row["calls_per_step"]) == ("fsdp", ["allgather"], 1.0)


def test_kernels_and_symmetric_memory(tmp_path: Path) -> None:
    trace = MadeTrace()
    for step in range(3):
        start = 1000.0 * step
        trace.step(step, start, 990)
        trace.add("cpu_op", "record_param_comms", start + 10, 20, **GATHER)
        trace.kernel(start + 100, 30, "my_inference_engine_reduce", launched=start + 15)
        trace.kernel(start + 140, 7, "my_inference_engine_softmax", launched=start + 60)  # outside of the record
        trace.kernel(start + 600, 50, "ncclDevKernel_AllReduce_Sum_f32", launched=start + 580, stream=30)
        trace.kernel(start + 660, 5, "a_kernel_of_nobody", launched=start + 590, stream=30)
        trace.add("cpu_op", "symm_mem::_low_contention_all_gather", start + 200, 50)
        trace.add("cpu_op", "aten::copy_", start + 205, 20)
        copy: dict[str, Any] = {"category": "gpu_memcpy", "call": "cudaMemcpyAsync"}
        trace.kernel(start + 300, 11, "Memcpy PtoP (Device -> Device)", launched=start + 210, **copy)
        trace.kernel(start + 400, 13, "Memcpy PtoP (Device -> Device)", launched=start + 390, **copy)
    trace.write(tmp_path / "rank0.json")
    analysis = load(tmp_path, options=Options(cache=False))
    steps, calls = analysis.step_table, analysis.collectives()
    assert set(steps["comm_ns"].tolist()) == {91_000} and set(steps["copy_ns"].tolist()) == {13_000}
    assert set(steps["compute_ns"].tolist()) == {12_000} and set(calls["kind"]) == {"allgather", "allreduce"}
    (notice,) = [item for item in analysis.notices if item.kind == "unnamed_kernels"]
    assert "3 kernels" in notice.message and "a_kernel_of_nobody" in notice.message and "softmax" not in notice.message
