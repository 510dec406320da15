"""NVML beside the steps, with a stand-in for the driver in the process that samples: this machine may have none."""

import json
import time
from pathlib import Path

import pytest

from rankscope.conf import RunDir
from rankscope.conf.columns_file import json_of, write_columns
from rankscope.conf.contract import GPU_COLUMNS, STEP_COLUMNS
from rankscope.conf.files import read_json, write_json
from rankscope.launch.run.gpu_state import OLD_NS, GpuState, Sample, of_steps

DRIVER = """
from types import SimpleNamespace

NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 1, 0, 0, 1
NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139
nvmlInit = lambda: None
nvmlDeviceGetCount = lambda: 2
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetUUID = lambda device: f"GPU-{device}"
nvmlDeviceGetClockInfo = lambda device, kind: 1980 - 100 * device
nvmlDeviceGetPowerUsage = lambda device: 650_500
nvmlDeviceGetUtilizationRates = lambda device: SimpleNamespace(gpu=97)
nvmlDeviceGetCurrentClocksThrottleReasons = lambda device: 4
nvmlDeviceGetPcieThroughput = lambda device, counter: 1_000_000

def nvmlDeviceGetTemperature(device, kind):
    raise RuntimeError("not supported")

def nvmlDeviceGetFieldValues(device, fields):
    return [SimpleNamespace(nvmlReturn=3)]
"""


def test_samples_of_a_process_are_added_to_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml.py").write_text(DRIVER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    ranks = [RunDir(tmp_path / "run").for_pass("plain").rank(number) for number in range(3)]
    with GpuState(tmp_path / "run", on=True) as state:
        deadline = time.monotonic() + 30
        while len(state._samples()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        state.stop()
        for rank in ranks:
            rank.path.mkdir(parents=True)
            write_json(rank.info, {"device_uuid": f"GPU-{rank.rank}"})
            steps = [
                {"step": step, "phase": "measured", "start_ns": step, "host_ns": time.time_ns()} for step in (0, 1)
            ]
            write_columns(steps, STEP_COLUMNS, rank.steps)
        state.add_to(ranks)
    first, second, third = (read_json(json_of(rank.steps)) for rank in ranks)
    assert list(first) == list(STEP_COLUMNS) and first["step"] == [0, 1]
    assert first["gpu_clock_mhz"] == [1980, 1980] and second["gpu_clock_mhz"] == [1880, 1880]
    assert first["gpu_power_w"] == [650.5] * 2 and first["gpu_utilization"] == pytest.approx([0.97] * 2)
    assert first["pcie_tx_MBs"] == pytest.approx([1024.0] * 2) and first["gpu_throttle_reasons"] == [4, 4]
    for unknown in (first["gpu_temperature_c"], first["nvlink_tx_MBs"], third["gpu_clock_mhz"]):
        assert unknown == [None, None]


def test_a_step_has_the_samples_in_it_or_the_last_one_before_its_end() -> None:
    samples = [
        Sample("0", 10, {"gpu_clock_mhz": 1980.0, "gpu_throttle_reasons": 4.0}),
        Sample("0", 20, {"gpu_clock_mhz": 1000.0, "gpu_throttle_reasons": 64.0, "gpu_power_w": 700.0}),
    ]
    found = of_steps(samples, [0, 5, 12, 10, 25, None, 21 + OLD_NS], [5, 10, 3, 20, None, 5, 5])
    assert found["gpu_clock_mhz"] == [None, 1980, 1980, 1490, 1000, None, None]  # the last one is too old
    assert found["gpu_throttle_reasons"] == [None, 4, 4, 4 | 64, 64, None, None]
    assert found["gpu_power_w"] == [None, None, None, 700, 700, None, None] and set(found) == set(GPU_COLUMNS)


def test_without_a_gpu_or_with_a_cut_sample_the_steps_stay_as_they_are(tmp_path: Path) -> None:
    rank = RunDir(tmp_path).for_pass("plain").rank(0)
    rank.path.mkdir(parents=True)
    write_json(rank.info, {"device_uuid": None})
    json_of(rank.steps).write_text("[]")
    with GpuState(tmp_path, on=False) as state:
        good = [json.dumps({"uuid": "GPU-0", "time_ns": time, "values": {}}).encode() for time in (2, 1)]
        odd = [b"[1]", b"5", b"null", b'{"time_ns": 1}', b'{"uuid": ["a"]}', b"[" * 100_000, b"\xff", b'{"uuid": "GP']
        state._file.write_bytes(b"\n".join([*good, *odd]))
        assert {uuid: [sample.time_ns for sample in found] for uuid, found in state._samples().items()} == {
            "GPU-0": [1, 2]
        }
        state.add_to([rank])
    assert json_of(rank.steps).read_text() == "[]"
