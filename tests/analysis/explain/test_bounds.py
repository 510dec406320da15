"""What findings promise on traces made by hand: never more than what the fix could bring."""

from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis import load, summarise

from ..made_traces import MadeTrace

V100 = {"id": 0, "name": "Tesla V100-SXM2-32GB", "computeMajor": 7, "warpSize": 32}
P100 = V100 | {"name": "Tesla P100", "computeMajor": 6}
A100 = V100 | {"name": "NVIDIA A100", "computeMajor": 8}
MI300 = {"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9, "warpSize": 64}


def findings(trace: MadeTrace, folder: Path) -> dict[str, dict[str, Any]]:
    return {item["id"]: item for item in summarise(load(trace.write(folder / "rank0.json")))["findings"]}


def waiting(blocked: float, *, loader: bool = False) -> MadeTrace:
    """Steps of 1000 us: 100 us of work, a wait of `blocked` us for the device, 700 us of idle time, 100 us of work."""
    trace = MadeTrace()
    for number in (4, 5, 6):
        start = number * 1000.0
        trace.step(number, start, 1000)
        trace.kernel(start + 10, 100)
        trace.call("cudaDeviceSynchronize", start + 110 - blocked, blocked)
        if loader:
            trace.add("user_annotation", "enumerate(DataLoader)#_X.__next__", start + 110, 690)
        trace.kernel(start + 810, 100)
    return trace


@pytest.mark.parametrize("blocked", [6.0, 60.0])
def test_a_wait_costs_at_most_the_time_it_blocked(blocked: float, tmp_path: Path) -> None:
    found = findings(waiting(blocked), tmp_path)
    claimed = found["sync_in_loop"]["recoverable_ms"] if "sync_in_loop" in found else 0.0
    assert claimed <= blocked / 1000
    gap = found.get("host_gap") or found["host_bound_launch"]
    assert gap["recoverable_ms"] + claimed <= 0.8 and gap["recoverable_ms"] > 0.6


def test_idle_time_in_the_loader_is_the_loader_s_alone(tmp_path: Path) -> None:
    found = findings(waiting(60, loader=True), tmp_path)
    assert found["data_stall"]["recoverable_ms"] == pytest.approx(0.69, abs=0.01)
    assert sum(item["recoverable_ms"] or 0 for item in found.values()) <= 0.81


def products(device: dict[str, Any], kernel: str) -> MadeTrace:
    trace = MadeTrace()
    trace.extra["deviceProperties"] = [device]
    for number in (4, 5):
        trace.step(number, number * 1000, 1000)
        trace.kernel(number * 1000 + 10, 900, kernel)
    return trace


@pytest.mark.parametrize(
    ("device", "kernel", "said"),
    [
        (A100, "ampere_sgemm_128x64_tn", "bf16, or at least TF32"),
        (V100, "volta_sgemm_128x64_tn", "fp16 only"),
        (P100, "maxwell_sgemm_128x64_tn", None),
        (MI300, "Cijk_Ailk_Bljk_SB_sgemm", "matrix cores: bf16 or fp16"),
        (A100, "some_gemm_of_mine", None),
    ],
)
def test_advice_that_the_device_can_follow(
    device: dict[str, Any], kernel: str, said: str | None, tmp_path: Path
) -> None:
    found = findings(products(device, kernel), tmp_path).get("low_tensor_core_use")
    assert (found is None) == (said is None)
    assert found is None or (said is not None and said in found["advice"])


def test_kernels_that_say_nothing_are_neither_memory_nor_compute_bound(tmp_path: Path) -> None:
    assert not {"memory_bound", "compute_bound"} & set(findings(products(A100, "my_kernel"), tmp_path))
    assert "compute_bound" in findings(products(A100, "ampere_sgemm_128x64_tn"), tmp_path)
    assert "memory_bound" in findings(products(A100, "vectorized_elementwise_kernel"), tmp_path)


def test_copies_on_the_device_need_no_pinned_memory(tmp_path: Path) -> None:
    trace = MadeTrace()
    for number in (4, 5):
        trace.step(number, number * 1000, 1000)
        trace.kernel(number * 1000 + 10, 500)
        memcpy: Any = {"call": "cudaMemcpyAsync", "category": "gpu_memcpy"}
        trace.kernel(number * 1000 + 510, 300, "Memcpy DtoD (Device -> Device)", **memcpy)
        trace.kernel(number * 1000 + 810, 90, "Memcpy HtoD (Pinned -> Device)", **memcpy)
    found = findings(trace, tmp_path)["copy_bound"]
    assert "pin" not in found["advice"] and found["overrides"] == []
    assert found["evidence"]["on_device_share"] == pytest.approx(300 / 390, abs=1e-4)


def test_exposed_communication_is_said_without_the_other_ranks(tmp_path: Path) -> None:
    trace = MadeTrace(rank=0, world=8)
    for number in (4, 5):
        trace.step(number, number * 1000, 1000)
        trace.kernel(number * 1000 + 10, 300)
        trace.kernel(number * 1000 + 310, 600, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=9)
    found = findings(trace, tmp_path)["exposed_comm"]
    assert found["recoverable_ms"] is None and found["evidence"]["exposed_comm_ms"] == pytest.approx(0.6)


def test_copies_of_mtia_are_no_compute(tmp_path: Path) -> None:
    trace = MadeTrace()
    trace.kernel(0, 100, "kernel_a", call=None, category="mtia_ccp_events")
    trace.kernel(200, 50, "dma_request", call=None, category="mtia_ccp_events", direction="HOST_TO_DEVICE")
    (totals,) = summarise(load(trace.write(tmp_path / "rank0.json")))["totals"]
    assert (totals["compute_us"], totals["memory_us"]) == (100, 50)
