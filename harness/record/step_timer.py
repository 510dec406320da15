"""Times every step of one rank without waiting for the device. Out: rows of steps.parquet.

Host times come from the host's clocks. Device times come from CUDA events, which are recorded in the stream and read
when the device has completed them, so the loop never synchronises. On a CPU, host times replace device times.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankscope.conf.contract import (
    BACKWARD_COMPUTE,
    DATA_WAIT,
    DEVICE_RANGES,
    HOST_RANGE_COLUMNS,
    RANGE_COLUMNS,
    Phase,
    RangeName,
    StepRow,
)
from rankscope.harness.record.core_wait import CoreWait


@dataclass(slots=True)
class _Step:
    """One step; its device times are filled in when its events are complete."""

    step: int
    phase: Phase
    start_ns: int
    began_ns: int  # monotonic
    first: torch.cuda.Event | None
    last: torch.cuda.Event | None = None  # `first` of the next step, or its own event if the loop pauses
    owns_last: bool = False
    ranges_ns: dict[RangeName, int] = field(default_factory=dict)
    host_ranges_ns: dict[RangeName, int] = field(default_factory=dict)  # how long the host was in device ranges
    host_ahead: bool | None = None
    cpu_began_ns: int = 0  # the thread's CPU time
    core_wait_began_ns: int | None = None  # `CoreWait.read`
    cpu_ns: int | None = None
    core_wait_ns: int | None = None
    data_cpu_ns: int = 0  # CPU time of this thread while it waited for batches, as a loader without workers needs it
    spans: list[tuple[RangeName, torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)
    computed: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)  # begin as in `spans`
    backward_compute_ns: int | None = None
    host_ns: int | None = None
    device_ns: int | None = None
    first_of_epoch: bool = False
    loss_on_host: Tensor | None = None  # valid once `last` is complete
    loss: float | None = None
    memory: tuple[int, int, int] | tuple[None, None, None] = (None, None, None)

    def row(self, *, waits_known: bool) -> StepRow:
        """Return the row of the step; without a loader that was seen, the waits for data are null."""
        waited = self.ranges_ns.get(DATA_WAIT, 0)
        data_wait_ns = waited if waits_known else None
        allocated, reserved, peak = self.memory
        return {
            "step": self.step,
            "phase": self.phase,
            "start_ns": self.start_ns,
            "host_ns": self.host_ns,
            "device_ns": self.device_ns,
            "cpu_ns": self.cpu_ns,
            "core_wait_ns": self.core_wait_ns,
            "data_wait_ns": data_wait_ns,
            "data_cpu_ns": self.data_cpu_ns if waits_known else None,
            **{RANGE_COLUMNS[name]: self.ranges_ns.get(name) for name in DEVICE_RANGES},
            BACKWARD_COMPUTE: self.backward_compute_ns,
            **{HOST_RANGE_COLUMNS[name]: self.host_ranges_ns.get(name) for name in HOST_RANGE_COLUMNS},
            "host_ahead": self.host_ahead,
            "launch_ns": None if self.host_ns is None or not waits_known else self.host_ns - waited,
            "first_of_epoch": self.first_of_epoch,
            "loss": self.loss,
            "memory_allocated_bytes": allocated,
            "memory_reserved_bytes": reserved,
            "memory_peak_bytes": peak,
        }


class StepTimer:
    """Records one row per step. Call `begin` at the start of a step, `end` at its end, `close` after the last one."""

    def __init__(self, device: torch.device, memory_every: int = 1) -> None:
        self._device = device
        self._memory_every = memory_every  # steps
        self._cuda = device.type == "cuda"
        self._done: list[_Step] = []
        self._pending: deque[_Step] = deque()  # ended on the host, not yet on the device
        self._current: _Step | None = None
        self._pool: list[torch.cuda.Event] = []
        self._draining = threading.Lock()  # the thread that saves on a signal may call `rows`
        self._range_ns = self._range_cpu_ns = 0
        self._cores = CoreWait()
        self.waits_known = True  # whether a step without a wait for data waited 0; otherwise it is null
        self._range_event: torch.cuda.Event | None = None
        self._range: RangeName | None = None  # the open range
        self._computed: torch.cuda.Event | int | None = None  # when the open backward pass had its own gradients

    @property
    def opened(self) -> tuple[int, int] | None:
        """The open step and when it began (`time.perf_counter_ns`)."""
        step = self._current
        return None if step is None else (step.step, step.began_ns)

    def begin(self, step: int, phase: Phase) -> None:
        """Start a step. The previous step ends here if it is still open."""
        event = self._record() if self._cuda else None
        now = time.perf_counter_ns()
        if self._current is not None:
            self._close(self._current, now, event, owns_last=False)
        self._current = _Step(step, phase, time.time_ns(), now, event)
        self._current.cpu_began_ns, self._current.core_wait_began_ns = time.thread_time_ns(), self._cores.read()

    def enter(self, name: RangeName) -> None:
        """Open the range `name`; ranges do not nest."""
        self._range, self._computed = name, None
        if self._cuda and name != DATA_WAIT:
            self._range_event, self._range_ns = self._record(), time.perf_counter_ns()
        else:
            self._range_ns, self._range_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
            self.waits_known = self.waits_known or name == DATA_WAIT

    def own_gradients(self) -> None:
        """Note that the rank's own gradients are computed; in a range with several backward passes, the last counts."""
        if self._range != "backward":
            return
        if self._range_event is None:
            self._computed = time.perf_counter_ns()
        elif isinstance(self._computed, torch.cuda.Event):
            self._computed.record()
        else:
            self._computed = self._record()

    def exit(self, name: RangeName) -> None:
        """Close the range `name` and add its time to the step."""
        step, self._range = self._current, None
        if step is None:
            return
        if self._range_event is not None:
            step.spans.append((name, self._range_event, self._record()))
            if isinstance(self._computed, torch.cuda.Event):
                step.computed.append((self._range_event, self._computed))
            self._range_event = None
            step.host_ranges_ns[name] = step.host_ranges_ns.get(name, 0) + time.perf_counter_ns() - self._range_ns
        else:
            step.ranges_ns[name] = step.ranges_ns.get(name, 0) + time.perf_counter_ns() - self._range_ns
            if isinstance(self._computed, int):
                step.backward_compute_ns = (step.backward_compute_ns or 0) + self._computed - self._range_ns
            if name == DATA_WAIT:
                step.data_cpu_ns += time.thread_time_ns() - self._range_cpu_ns

    def mark_first_of_epoch(self) -> None:
        """Mark the open step as one in which the loader started an epoch."""
        if self._current is not None:
            self._current.first_of_epoch = True

    def read_loss(self, loss: Tensor) -> None:
        """Copy the loss to the host asynchronously, and read it when the device has completed the copy."""
        if self._current is None:
            return
        if self._cuda:
            host = torch.empty((), dtype=torch.float32, pin_memory=True)
            host.copy_(loss.detach(), non_blocking=True)
        else:
            host = loss.detach().float()
        self._current.loss_on_host = host

    def end(self) -> None:
        """Read the memory statistics at the end of the step, and the times of steps that the device has completed."""
        if self._current is not None:
            self._take_memory(self._current)
            self._current.host_ahead = _host_ahead(self._current)
        self._drain()

    def _take_memory(self, step: _Step) -> None:
        if self._cuda and step.step % self._memory_every == 0:
            # One call for all three: each of the single getters would build the complete table again.
            memory = torch.cuda.memory_stats_as_nested_dict(self._device)
            allocated, reserved = memory["allocated_bytes"]["all"], memory["reserved_bytes"]["all"]
            # What is reserved counts by its peak, too: cuDNN tries algorithms with memory that it gives back at once.
            step.memory = (allocated["current"], reserved["peak"], allocated["peak"])
            torch.cuda.reset_peak_memory_stats(self._device)

    def close(self) -> None:
        """End the open step here instead of at the start of the next one, because something else comes in between."""
        step = self._current
        if step is not None:
            event = self._record() if self._cuda else None
            self._close(step, time.perf_counter_ns(), event, owns_last=True)
            if step.memory[0] is None:
                self._take_memory(step)

    def drop(self) -> None:
        """Discard the open step, which did not complete."""
        self._current = None

    def relabel(self, first: int, phase: Phase) -> None:
        """Give the steps from `first` on another phase."""
        for step in [*self._done, *self._pending]:
            if step.step >= first:
                step.phase = phase

    def relabel_one(self, number: int, phase: Phase) -> None:
        """Give one step another phase."""
        for step in [*self._done, *self._pending]:
            if step.step == number:
                step.phase = phase

    def rows(self) -> list[StepRow]:
        """Return the rows so far; values that are not known yet are null."""
        self._drain()
        steps = [*self._done, *self._pending]
        if self._current is not None:
            steps.append(self._current)
        return [step.row(waits_known=self.waits_known) for step in steps]

    def take(self) -> list[StepRow]:
        """Return the complete rows and discard them, so that a long run does not fill the memory."""
        self._drain()
        with self._draining:
            rows = [step.row(waits_known=self.waits_known) for step in self._done]
            self._done.clear()
        return rows

    def wait(self) -> None:
        """Wait until the device has completed every ended step."""
        if self._pending and self._pending[-1].last is not None:
            self._pending[-1].last.synchronize()
        self._drain()

    def _close(self, step: _Step, now: int, event: torch.cuda.Event | None, *, owns_last: bool) -> None:
        step.host_ns = now - step.began_ns
        waited = self._cores.read()
        if waited is not None and step.core_wait_began_ns is not None:
            step.cpu_ns = time.thread_time_ns() - step.cpu_began_ns
            step.core_wait_ns = waited - step.core_wait_began_ns
        step.last, step.owns_last = event, owns_last
        self._pending.append(step)
        self._current = None

    def _drain(self) -> None:
        with self._draining:
            while self._pending:
                step = self._pending[0]
                if step.last is not None and not step.last.query():
                    return
                if step.first is not None and step.last is not None:
                    self._read_events(step, step.first, step.last)
                if step.loss_on_host is not None:
                    step.loss = step.loss_on_host.item()
                    step.loss_on_host = None
                self._done.append(self._pending.popleft())

    def _read_events(self, step: _Step, first: torch.cuda.Event, last: torch.cuda.Event) -> None:
        step.device_ns = _elapsed_ns(first, last)
        if step.computed:
            step.backward_compute_ns = sum(_elapsed_ns(start, end) for start, end in step.computed)
            self._pool += [end for _, end in step.computed]
        for name, start, end in step.spans:
            step.ranges_ns[name] = step.ranges_ns.get(name, 0) + _elapsed_ns(start, end)
            self._pool += (start, end)
        self._pool.append(first)
        if step.owns_last:
            self._pool.append(last)
        step.first = step.last = None
        step.spans.clear()
        step.computed.clear()

    def _record(self) -> torch.cuda.Event:
        event = self._pool.pop() if self._pool else torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _host_ahead(step: _Step) -> bool | None:
    """Whether the host has enqueued the step before the device has done its backward pass (or its last range)."""
    ends = [end for name, _, end in step.spans if name == "backward"] or [end for _, _, end in step.spans]
    return None if not ends else not ends[-1].query()


def _elapsed_ns(start: torch.cuda.Event, end: torch.cuda.Event) -> int:
    return round(float(start.elapsed_time(end)) * 1e6)
