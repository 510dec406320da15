"""NVML beside the steps, with a stand-in for the driver: this machine may have none."""

from types import SimpleNamespace
from typing import Any

import pytest

from rankscope.conf.contract import GPU_COLUMNS, STEP_COLUMNS
from rankscope.harness.record import gpu_state
from rankscope.harness.record.gpu_state import GpuState

from .test_parts import context_of


def failing(*_: Any) -> Any:
    raise RuntimeError("not supported")


def driver(**more: Any) -> Any:
    return SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        NVML_PCIE_UTIL_TX_BYTES=0,
        NVML_PCIE_UTIL_RX_BYTES=1,
        nvmlDeviceGetClockInfo=lambda device, kind: 1980,
        nvmlDeviceGetPowerUsage=lambda device: 650_500,
        nvmlDeviceGetTemperature=lambda device, kind: 61,
        nvmlDeviceGetUtilizationRates=lambda device: SimpleNamespace(gpu=97),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda device: 4,
        nvmlDeviceGetPcieThroughput=lambda device, counter: 1_000_000,
        **more,
    )


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> GpuState:
    found = GpuState(context_of(), None)
    monkeypatch.setattr(found, "_nvml", driver())
    monkeypatch.setattr(found, "_device", object())
    return found


def test_what_is_answered_is_kept_and_the_rest_is_null(state: GpuState) -> None:
    sample = state.sample()
    assert sample["gpu_power_w"] == 650.5 and sample["gpu_utilization"] == 0.97
    assert sample["pcie_tx_MBs"] == pytest.approx(1024.0)
    state._nvml.nvmlDeviceGetTemperature = failing
    assert "gpu_temperature_c" not in state.sample()
    state._samples = [(10, sample | {"gpu_clock_mhz": 1000.0}), (20, state.sample() | {"gpu_throttle_reasons": 64.0})]
    row = state.during(10, 30)
    assert row["gpu_clock_mhz"] == 1490 and row["gpu_throttle_reasons"] == 4 | 64 and row["gpu_temperature_c"] == 61
    assert row["nvlink_tx_MBs"] is None
    assert state.during(12, 14)["gpu_clock_mhz"] == 1000  # a step between two samples has the last one
    assert set(row) == set(GPU_COLUMNS) <= set(STEP_COLUMNS)


def test_without_a_gpu_or_a_driver_there_are_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    for found in (GpuState(context_of(), None), GpuState(SimpleNamespace(cuda=True), "GPU-none")):  # type: ignore[arg-type]
        found.start()
        found.stop()
        assert set(found.during(0, 1).values()) == {None}
    assert gpu_state._open("GPU-none") == (None, None)
