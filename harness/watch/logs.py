"""What is written of a watched run: every step, statistics of a rolling window, and events."""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from rankscope.conf.contract import StepRow
from rankscope.harness.watch.exact_tests import Values
from rankscope.harness.watch.log_limit import LogLimit
from rankscope.harness.watch.options import Options
from rankscope.harness.watch.parts import PARTS, TIMES, step_ns
from rankscope.harness.watch.sinks.sink import Sink

_WRITTEN = {
    "data": "data_wait", "copy": "h2d", "forward": "forward", "backward": "backward", "optimizer": "optimizer",
}  # fmt: skip
log = logging.getLogger("rankscope.monitor")


class StepLog:
    """Writes the steps of one rank, and every few steps the statistics of the last ones."""

    def __init__(self, options: Options, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self._every = options.every
        self._recent: deque[dict[str, Any]] = deque(maxlen=options.window)
        self._samples: dict[int, int | None] = {}  # of steps that the device has not completed

    def count(self, step: int, samples: int | None) -> None:
        """Keep the number of samples of a step until its times are known."""
        self._samples[step] = samples

    def write(self, rows: Sequence[StepRow], traced: Callable[[int], bool]) -> None:
        """Write complete steps; `traced` tells whether torch.profiler recorded a step."""
        lines = [line_of(row, self._samples.pop(row["step"], None), traced(row["step"])) for row in rows]
        for sink in self._sinks:
            sink.steps(lines)
        self._recent.extend(lines)
        if any(line["step"] % self._every == self._every - 1 for line in lines):
            found = {"step": self._recent[-1]["step"], "time": time.time(), **statistics(self._recent)}
            for sink in self._sinks:
                sink.stats(found)


class RankLog:
    """Gives the sinks the statistics of every rank over the rolling window, from the blocks that the ranks exchange."""

    def __init__(self, options: Options, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self._blocks: deque[Values] = deque(maxlen=max(1, options.window // options.every))

    def add(self, last: int, block: Values) -> None:
        """Add a block (steps x ranks x `PARTS`, ns), which ends with step `last`."""
        if not self._sinks:
            return
        self._blocks.append(block)
        times = np.concatenate(self._blocks) * 1e-6
        p50, p95 = np.percentile(times[:, :, 0], (50, 95), axis=0).tolist()
        means = times.mean(axis=0).tolist()
        found = [
            {"step_ms_p50": middle, "step_ms_p95": high}
            | {f"{name}_ms": own[PARTS.index(part)] for part, name in _WRITTEN.items()}
            for middle, high, own in zip(p50, p95, means, strict=True)
        ]
        for sink in self._sinks:
            sink.ranks(last, found)


class EventLog:
    """Writes events to the sinks, and on the rank that `logs` (one of all) to the log."""

    def __init__(self, sinks: Sequence[Sink], *, logs: bool) -> None:
        self._logs = logs
        self._sinks = sinks
        self._limit = LogLimit()

    def write(self, event: dict[str, Any], text: str) -> None:
        for sink in self._sinks:
            sink.event(event, text)
        if self._logs:
            for line in self._limit.lines(event["step"], text):
                log.warning("rankscope: %s", line)


def line_of(row: StepRow, samples: int | None, traced: bool) -> dict[str, Any]:
    """Return what is written of a step (ms); null for a range that the step did not have."""
    line = {"step": row["step"], "start_ns": row["start_ns"], "step_ms": step_ns(row) * 1e-6}
    line |= {name: None if row[column] is None else row[column] * 1e-6 for name, column in TIMES.items()}
    return line | {
        "host_ms": row["launch_ns"] * 1e-6,
        "host_ahead": row["host_ahead"],
        "samples": samples,
        "memory_peak_bytes": row["memory_peak_bytes"],
        "first_of_epoch": row["first_of_epoch"],
        "traced": traced,
    }


def statistics(lines: Collection[dict[str, Any]]) -> dict[str, Any]:
    """Return percentiles and means over lines of steps; samples per second only if every step has its samples."""
    times = np.array([line["step_ms"] for line in lines])
    samples = [line["samples"] for line in lines]
    known = all(count is not None for count in samples)
    peaks = [line["memory_peak_bytes"] for line in lines if line["memory_peak_bytes"] is not None]
    p50, p95, p99 = np.percentile(times, (50, 95, 99)).tolist()
    return {
        "steps": len(times),
        "step_ms_p50": p50,
        "step_ms_p95": p95,
        "step_ms_p99": p99,
        "data_wait_ms": float(np.mean([line["data_wait_ms"] for line in lines])),
        "samples_per_s": sum(samples) / float(times.sum() * 1e-3) if known and sum(samples) else None,
        "memory_peak_bytes": max(peaks, default=None),
    }
