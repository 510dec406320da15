"""The window that Nsight Systems records in the nsys pass: opened and closed around the active steps, with their names.

On a GPU cudaProfilerStart and cudaProfilerStop bound it, on a CPU an NVTX range; `launch` starts nsys so that it waits
for them. torch.profiler takes no part in this pass: CUPTI serves one client.
"""

from collections.abc import Callable
from typing import Any

import torch

from rankscope.conf.contract import CAPTURE, STEP_RANGE
from rankscope.conf.sections import ProfileConfig
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.record.nvtx import Emitter, PackageEmitter, TorchEmitter

_RUNTIME: Any = torch.cuda._cudart  # type: ignore[attr-defined]  # None in a CPU build of torch
_START: Any = getattr(_RUNTIME, "cudaProfilerStart", None)
_STOP: Any = getattr(_RUNTIME, "cudaProfilerStop", None)


def keep_closed(called: Callable[[], None]) -> None:
    """Let a script's own cudaProfilerStart and Stop do nothing but `called`: nsys cannot tell them from ours.

    All calls through torch come by here: those of `torch.cuda.profiler` and of `torch.cuda.cudart()`.
    """
    if _RUNTIME is None:
        return

    def nothing() -> Any:
        called()
        return _RUNTIME.cudaError.success

    _RUNTIME.cudaProfilerStart = _RUNTIME.cudaProfilerStop = nothing


class Capture:
    """One window; `StepProfiler` has the same methods."""

    def __init__(self, config: ProfileConfig, context: RankContext, *, profiled: bool) -> None:
        self._context = context
        self._first = config.wait + config.warmup
        self._last = self._first + config.active - 1
        self._step = 0
        self._package = PackageEmitter() if profiled and not context.cuda else None
        self.emitter: Emitter | None = TorchEmitter() if context.cuda else self._package
        self._opened: Any = None
        self._opened_step: Any = None
        self.traces: list[str] = []
        self.notes: list[str] = []

    def start(self) -> None:
        """Start at step 0."""
        if self.opens_after(-1):
            self._open()

    def opens_after(self, step: int) -> bool:
        """Whether the step after `step` is the first of the window."""
        return step + 1 == self._first

    def closes_after(self, step: int) -> bool:
        """Whether `step` is the last of the window."""
        return step == self._last

    def begin(self, step: int) -> None:
        """Open the range of a step of the window: `step_N`. A step may end inside a range of the job's own."""
        if self.emitter is not None and self._first <= step <= self._last:
            self._opened_step = self.emitter.start(f"{STEP_RANGE}{step}")

    def end(self, step: int) -> None:
        """Close the range of a step of the window."""
        if self.emitter is not None and self._first <= step <= self._last:
            self.emitter.end(self._opened_step)

    def step(self) -> None:
        """End a step. Where the window opens or closes, the device is idle and all ranks are there."""
        if self.opens_after(self._step):
            self._open()
        elif self.closes_after(self._step):
            self._close()
        self._step += 1

    def stop(self) -> None:
        """Stop after the last step: nothing is open."""

    def abort(self) -> None:
        """Stop after an error: nsys writes what it has when the process ends."""

    def _open(self) -> None:
        """Open the window on all ranks before any goes on.

        To open takes a rank 100 ms and more, and each its own time: without the second meeting the first collective
        would wait for the slowest.
        """
        self._meet()
        if self._context.cuda:
            torch.cuda.check_error(_START())
        elif self._package is not None:
            self._opened = self._package.start(CAPTURE)
        self._meet()

    def _close(self) -> None:
        self._meet()
        if self._context.cuda:
            torch.cuda.check_error(_STOP())
        elif self._package is not None:
            self._package.end(self._opened)

    def _meet(self) -> None:
        self._context.synchronize()
        self._context.barrier()
