"""Samples the state of the GPU a few times a second by NVML: clocks, power, temperature, throttling, links.

A separate thread does it, so that the loop is not held up. Values are null if NVML is missing or does not answer:
nothing here may end a run. Out: columns of steps.parquet for each step.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from rankscope.conf.contract import GPU_COLUMNS, GpuColumn
from rankscope.harness.group.process_group import RankContext

INTERVAL_S = 0.2
_NVLINK: dict[GpuColumn, str] = {
    "nvlink_tx_MBs": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX",
    "nvlink_rx_MBs": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",
}
_ALL_LINKS = 0xFFFFFFFF  # scope of a field value: all links of the device

Sample = dict[GpuColumn, float]


class GpuState:
    """Samples one device from `start` to `stop`; without a GPU or NVML there are no samples."""

    def __init__(self, context: RankContext, uuid: str | None) -> None:
        self._samples: list[tuple[int, Sample]] = []
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._links: dict[str, tuple[int, float]] = {}
        self._nvml: Any
        self._device: Any
        self._nvml, self._device = _open(uuid) if context.cuda else (None, None)

    def start(self) -> None:
        if self._device is not None:
            self._thread = threading.Thread(target=self._run, name="gpu-state", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * INTERVAL_S)

    def during(self, begin_ns: int, end_ns: int) -> dict[GpuColumn, float | int | None]:
        """Return the means over the samples between two wall-clock times; without any, the last sample before the end.

        The reasons to throttle are NVML's bits: the union over the samples.
        """
        samples = list(self._samples)
        inside = [sample for at, sample in samples if begin_ns <= at < end_ns]
        inside = inside or [sample for at, sample in samples if at < end_ns][-1:]
        row: dict[GpuColumn, float | int | None] = dict.fromkeys(GPU_COLUMNS)
        for name in GPU_COLUMNS:
            values = [sample[name] for sample in inside if name in sample]
            if values and name == "gpu_throttle_reasons":
                bits = 0
                for value in values:
                    bits |= int(value)
                row[name] = bits
            elif values:
                row[name] = sum(values) / len(values)
        return row

    def sample(self) -> Sample:
        """Query every value once; values that NVML does not answer are missing."""
        nvml, device = self._nvml, self._device
        asked: dict[GpuColumn, Callable[[], float]] = {
            "gpu_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
            "gpu_power_w": lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
            "gpu_temperature_c": lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU),
            "gpu_utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
            "gpu_throttle_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device),
            "pcie_tx_MBs": lambda: self._pcie(nvml.NVML_PCIE_UTIL_TX_BYTES),
            "pcie_rx_MBs": lambda: self._pcie(nvml.NVML_PCIE_UTIL_RX_BYTES),
            **{name: lambda name=name: self._nvlink(name) for name in _NVLINK},  # type: ignore[misc]
        }
        found: Sample = {}
        for name, ask in asked.items():
            try:
                found[name] = float(ask())
            except Exception:  # a boundary: drivers raise whatever they like, and none of it may end the run
                continue
        return found

    def _pcie(self, counter: int) -> float:
        return float(self._nvml.nvmlDeviceGetPcieThroughput(self._device, counter)) * 1024 / 1e6  # KiB/s

    def _nvlink(self, name: GpuColumn) -> float:
        """Return the rate since the last sample (MB/s); the counter holds KiB over all links."""
        field = getattr(self._nvml, _NVLINK[name])
        (value,) = self._nvml.nvmlDeviceGetFieldValues(self._device, [(field, _ALL_LINKS)])
        if value.nvmlReturn != 0:
            raise ValueError(name)
        now, count = time.time_ns(), float(value.value.ullVal)
        before = self._links.get(name)
        self._links[name] = (now, count)
        if before is None:
            raise ValueError(name)
        return (count - before[1]) * 1024 / 1e6 / ((now - before[0]) * 1e-9)

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL_S):
            found = self.sample()
            self._samples.append((time.time_ns(), found))


def _open(uuid: str | None) -> tuple[Any, Any]:
    """Return NVML and the device with a UUID, or (None, None)."""
    try:
        import pynvml  # an extra

        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except Exception:  # not installed, no driver, or a MIG device: there is no state to show
        return None, None
