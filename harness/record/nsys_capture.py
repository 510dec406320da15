"""The window that Nsight Systems records in the nsys pass: around the active steps, each with a named range.

On a GPU it is bounded by cudaProfilerStart and cudaProfilerStop, on a CPU by an NVTX range; `launch` starts nsys so
that it waits for them. torch.profiler is not used in this pass, because CUPTI serves one client only.
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
    """Replace a script's cudaProfilerStart and Stop by `called`, because nsys cannot tell them from ours.

    This covers all calls through torch: those of `torch.cuda.profiler` and of `torch.cuda.cudart()`.
    """
    if _RUNTIME is None:
        return

    def nothing() -> Any:
        called()
        return _RUNTIME.cudaError.success

    _RUNTIME.cudaProfilerStart = _RUNTIME.cudaProfilerStop = nothing


class Capture:
    """One window, with the same methods as `StepProfiler`."""

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
        if self.opens_after(-1):
            self._open()

    def opens_after(self, step: int) -> bool:
        """Whether the step after `step` is the first of the window."""
        return step + 1 == self._first

    def closes_after(self, step: int) -> bool:
        """Whether `step` is the last of the window."""
        return step == self._last

    def begin(self, step: int) -> None:
        """Open the range `step_N` of a step in the window. It need not nest with ranges of the job."""
        if self.emitter is not None and self._first <= step <= self._last:
            self._opened_step = self.emitter.start(f"{STEP_RANGE}{step}")

    def end(self, step: int) -> None:
        """Close the range of a step in the window."""
        if self.emitter is not None and self._first <= step <= self._last:
            self.emitter.end(self._opened_step)

    def step(self) -> None:
        """End a step. Before the window opens or closes, wait for the device and for all ranks."""
        if self.opens_after(self._step):
            self._open()
        elif self.closes_after(self._step):
            self._close()
        self._step += 1

    def stop(self) -> None:
        """Do nothing: the window is closed after its last step."""

    def abort(self) -> None:
        """Do nothing: nsys writes what it has when the process ends."""

    def _open(self) -> None:
        """Open the window on all ranks before any of them goes on.

        Opening takes 100 ms or more, and differs between ranks. Without the second barrier the first collective would
        wait for the slowest rank.
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
        self._context.barrier("nsys")
