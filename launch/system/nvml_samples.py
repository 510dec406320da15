"""Samples every GPU of this node by NVML: `python -m rankscope.launch.system.nvml_samples FILE`, until it is ended.

It is a process of its own, so that no thread and no driver call of rankscope is in the ranks. Out: a line of JSON for
each sample of a GPU: its `uuid`, the wall clock (`time_ns`), and the `values` that the driver answers.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from rankscope.conf.contract import GpuColumn

INTERVAL_S = 0.2
_NVLINK: dict[GpuColumn, str] = {
    "nvlink_tx_MBs": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX",
    "nvlink_rx_MBs": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",
}
_ALL_LINKS = 0xFFFFFFFF  # scope of a field value: all links of the device


class Gpu:
    """One device of NVML."""

    def __init__(self, nvml: Any, device: Any) -> None:
        self._nvml, self._device = nvml, device
        self._links: dict[str, tuple[int, float]] = {}

    def sample(self) -> dict[GpuColumn, float]:
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
        found: dict[GpuColumn, float] = {}
        for name, ask in asked.items():
            try:
                found[name] = float(ask())
            except Exception:  # a boundary: drivers raise whatever they like
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


def main(arguments: list[str]) -> int:
    """Write samples to the file `arguments[0]` until the process is ended."""
    import pynvml  # an extra: without it this process ends, and nothing is known of the GPUs

    pynvml.nvmlInit()
    with Path(arguments[0]).open("a", buffering=1) as file:
        threads = [
            threading.Thread(target=_watch, args=(pynvml, index, file), daemon=True)
            for index in range(pynvml.nvmlDeviceGetCount())
        ]
        for thread in threads:  # one for each GPU, because NVML takes 20 ms for each direction of PCIe
            thread.start()
        for thread in threads:
            thread.join()
    return 0


def _watch(nvml: Any, index: int, file: TextIO) -> None:
    device = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid, gpu = nvml.nvmlDeviceGetUUID(device), Gpu(nvml, device)
    while True:
        found = gpu.sample()
        file.write(json.dumps({"uuid": uuid, "time_ns": time.time_ns(), "values": found}) + "\n")
        time.sleep(INTERVAL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
