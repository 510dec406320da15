"""What state each step's GPU was in: clocks, power, temperature, throttling, links.

A process samples the GPUs of this node while the ranks record. Then the launcher adds the samples to the steps that
the ranks wrote. Values stay null without a GPU, without NVML, and for what the driver does not answer.
"""

import json
import os
import subprocess
import sys
import tempfile
from bisect import bisect_left
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import msgspec

from rankscope.conf import RankDir
from rankscope.conf.columns_file import json_of
from rankscope.conf.contract import GPU_COLUMNS, STEP_COLUMNS, GpuColumn
from rankscope.conf.files import read_json, write_text
from rankscope.launch.run.rank_files import info_of
from rankscope.launch.system import processes

_SAMPLER = "rankscope.launch.system.nvml_samples"
_END_S = 5.0
OLD_NS = 5_000_000_000  # an older sample says nothing about a step


class Sample(msgspec.Struct, frozen=True):
    """One line of the sampler: a GPU at a time (wall clock), and the values that its driver answered."""

    uuid: str
    time_ns: int
    values: dict[GpuColumn, float]


class GpuState:
    """Samples the GPUs of this node from the begin of the block to `stop`; `on`: whether there are some."""

    def __init__(self, run_dir: Path, *, on: bool) -> None:
        self._run_dir, self._on = run_dir, on and find_spec("pynvml") is not None
        self._folder = tempfile.TemporaryDirectory(prefix="rankscope-", ignore_cleanup_errors=True)
        self._file = Path(self._folder.name) / "samples.jsonl"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if self._on:
            environment = {**os.environ, processes.MARK: processes.mark(self._run_dir)}
            command = [sys.executable, "-P", "-m", _SAMPLER, str(self._file)]
            self._process = processes.start(command, environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._folder.cleanup()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:  # the driver hangs
                self._process.kill()

    def add_to(self, ranks: list[RankDir]) -> None:
        """Add the samples to the steps of these ranks, which are still JSON."""
        samples = self._samples()
        for rank in ranks:
            own = samples.get(str(info_of(rank).get("device_uuid")))
            path = json_of(rank.steps)
            if own and path.exists():
                columns = read_json(path)  # the rank's own, replaced in one piece
                found = of_steps(own, columns["start_ns"], columns["host_ns"])
                write_text(path, json.dumps({name: columns[name] for name in STEP_COLUMNS} | found))

    def _samples(self) -> dict[str, list[Sample]]:
        """Return the samples of each GPU by its UUID, in order of time."""
        found: dict[str, list[Sample]] = {}
        for line in self._file.read_bytes().splitlines() if self._file.exists() else []:
            try:
                sample = msgspec.json.decode(line, type=Sample)
            except ValueError:  # the last line, cut when the process was ended
                continue
            found.setdefault(sample.uuid, []).append(sample)
        return {uuid: sorted(samples, key=lambda sample: sample.time_ns) for uuid, samples in found.items()}


def of_steps(
    samples: list[Sample], starts: list[int | None], lengths: list[int | None]
) -> dict[GpuColumn, list[float | int | None]]:
    """Return the columns of the steps that begin at `starts` (wall clock, ns).

    A value is the mean over the samples in the step; without any, that of the last sample before its end, if that is no
    older than `OLD_NS` at the begin of the step. The reasons to throttle are NVML's bits: all of these samples.
    """
    times = [sample.time_ns for sample in samples]
    columns: dict[GpuColumn, list[float | int | None]] = {name: [] for name in GPU_COLUMNS}
    for start, length in zip(starts, lengths, strict=True):
        first, end = (bisect_left(times, start + after) if start is not None else 0 for after in (0, length or 0))
        if first == end and end and start is not None and times[end - 1] >= start - OLD_NS:
            first = end - 1
        inside = samples[first:end]
        for name in GPU_COLUMNS:
            values = [sample.values[name] for sample in inside if name in sample.values]
            columns[name].append(_bits(values) if name == "gpu_throttle_reasons" else _mean(values))
    return columns


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _bits(values: list[float]) -> int | None:
    found = 0
    for value in values:
        found |= int(value)
    return found if values else None
