"""Times every step of one rank without waiting for the device; rows of steps.parquet out.

Host times come from the host's clocks. Device times come from CUDA events, recorded in the stream and read later,
when the device has passed them: the loop never synchronises. On a CPU the host times stand for the device times.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from rankscope.conf.files import replacing

DEVICE_RANGES = ("h2d", "forward", "backward", "optimizer")

SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("phase", pa.string()),
        ("start_ns", pa.int64()),
        ("host_ns", pa.int64()),
        ("device_ns", pa.int64()),
        ("data_wait_ns", pa.int64()),
        *((f"{name}_ns", pa.int64()) for name in DEVICE_RANGES),
        ("launch_ns", pa.int64()),
        ("first_of_epoch", pa.bool_()),
        ("loss", pa.float64()),
        ("memory_allocated_bytes", pa.int64()),
        ("memory_reserved_bytes", pa.int64()),
        ("memory_peak_bytes", pa.int64()),
    ]
)


@dataclass(slots=True)
class _Step:
    """What is known of one step; the device's part is filled in when its events are complete."""

    row: dict[str, Any]
    began_ns: int  # monotonic
    first: torch.cuda.Event | None = None
    last: torch.cuda.Event | None = None  # the first of the next step, or its own when the loop pauses
    own_last: bool = False
    spans: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)
    loss: Tensor | None = None  # on the host; valid once `last` is complete


class StepTimer:
    """Records one row a step. Call `begin` at each step's start, `end` at its end, `close` after the last."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._done: list[dict[str, Any]] = []
        self._pending: deque[_Step] = deque()  # closed on the host, the device not yet there
        self._current: _Step | None = None
        self._pool: list[torch.cuda.Event] = []
        self._range_ns = 0
        self._range_event: torch.cuda.Event | None = None

    def begin(self, step: int, phase: str) -> None:
        """Start a step; the one before, if still open, ends here."""
        event = self._record()
        now = time.perf_counter_ns()
        self._close(now, event, own=False)
        row: dict[str, Any] = dict.fromkeys(SCHEMA.names)
        row |= {"step": step, "phase": phase, "start_ns": time.time_ns(), "data_wait_ns": 0, "first_of_epoch": False}
        if not self._cuda:
            row |= {f"{name}_ns": 0 for name in DEVICE_RANGES}
        self._current = _Step(row=row, began_ns=now, first=event)

    def enter(self, name: str) -> None:
        """Open the range `name`; ranges do not nest."""
        self._range_event = self._record() if name != "data_wait" else None
        self._range_ns = time.perf_counter_ns()

    def exit(self, name: str) -> None:
        """Close the range `name` and add its time to the step."""
        step = self._current
        if step is None:
            return
        if self._range_event is not None:
            end = self._record()
            assert end is not None  # there is a CUDA device
            step.spans.append((name, self._range_event, end))
        else:
            step.row[f"{name}_ns"] += time.perf_counter_ns() - self._range_ns

    def mark_first_of_epoch(self) -> None:
        """Say that the loader was started anew in this step."""
        if self._current is not None:
            self._current.row["first_of_epoch"] = True

    def read_loss(self, loss: Tensor) -> None:
        """Copy the loss to the host behind the work that makes it, and read it when the device is past it."""
        if self._current is None:
            return
        if self._cuda:
            host = torch.empty((), dtype=torch.float32, pin_memory=True)
            host.copy_(loss.detach(), non_blocking=True)
        else:
            host = loss.detach().float().clone()
        self._current.loss = host

    def end(self) -> None:
        """Take what is known at the step's end, and what the device has finished of earlier ones."""
        step = self._current
        if step is None:
            return
        if self._cuda:
            # One call for all three: the single getters each build the whole table again.
            memory = torch.cuda.memory_stats_as_nested_dict(self._device)
            allocated = memory["allocated_bytes"]["all"]
            step.row["memory_allocated_bytes"] = allocated["current"]
            step.row["memory_peak_bytes"] = allocated["peak"]
            step.row["memory_reserved_bytes"] = memory["reserved_bytes"]["all"]["current"]
            torch.cuda.reset_peak_memory_stats(self._device)
        self._drain()

    def close(self) -> None:
        """End the open step here and not at the next one's start, because something else comes in between."""
        if self._current is not None:
            event = self._record()
            self._close(time.perf_counter_ns(), event, own=True)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows so far; what the device has not finished, or an open step has not reached, is null."""
        self._drain()
        waiting = [step.row for step in self._pending]
        unfinished = [self._current.row] if self._current is not None else []
        return [*self._done, *waiting, *unfinished]

    def _close(self, now: int, event: torch.cuda.Event | None, *, own: bool) -> None:
        step = self._current
        if step is None:
            return
        step.row["host_ns"] = now - step.began_ns
        step.row["launch_ns"] = step.row["host_ns"] - step.row["data_wait_ns"]
        step.last, step.own_last = event, own
        self._pending.append(step)
        self._current = None

    def _drain(self) -> None:
        while self._pending:
            step = self._pending[0]
            if step.last is not None and not step.last.query():
                return
            self._pending.popleft()
            if step.first is not None and step.last is not None:
                self._read_events(step)
            if step.loss is not None:
                step.row["loss"] = step.loss.item()
            self._done.append(step.row)

    def _read_events(self, step: _Step) -> None:
        assert step.first is not None and step.last is not None
        step.row["device_ns"] = _elapsed_ns(step.first, step.last)
        for name, start, end in step.spans:
            key = f"{name}_ns"
            step.row[key] = (step.row[key] or 0) + _elapsed_ns(start, end)
            self._pool += (start, end)
        self._pool.append(step.first)
        if step.own_last:
            self._pool.append(step.last)

    def _record(self) -> torch.cuda.Event | None:
        if not self._cuda:
            return None
        event = self._pool.pop() if self._pool else torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def write_steps(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the rows of a `StepTimer` as Parquet, whole or not at all."""
    with replacing(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), temporary, compression="zstd")


def _elapsed_ns(start: torch.cuda.Event, end: torch.cuda.Event) -> int:
    return round(float(start.elapsed_time(end)) * 1e6)
