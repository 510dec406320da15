"""The named ranges of a step: one call opens a range for the timer, torch.profiler and Nsight Systems.

`record_function` costs several microseconds even without a profiler, so it is used only in the torch pass. NVTX costs
well under one microsecond without nsys; it is used on every GPU, and on a CPU in the nsys pass.
"""

from types import TracebackType
from typing import Any

from torch.profiler import record_function

from rankscope.conf.contract import RANGES, RangeName
from rankscope.harness.record.nvtx import Emitter
from rankscope.harness.record.step_timer import StepTimer


class Range:
    """A context manager that can be entered again and again, but not inside itself.

    Inside another range of the same `Ranges`, the profilers see it, but its time counts for the outer range.
    """

    def __init__(self, name: RangeName, ranges: "Ranges", *, annotate: bool, nvtx: Emitter | None, loose: bool) -> None:
        self._name = name
        self._ranges = ranges
        self.annotated = annotate
        self._nvtx = nvtx
        self._loose = loose
        self._annotation: record_function | None = None
        self._opened: Any = None
        self._timed = False

    def __enter__(self) -> None:
        if self._nvtx is not None:
            if self._loose:
                self._opened = self._nvtx.start(self._name)
            else:
                self._nvtx.push(self._name)
        if self.annotated:
            self._annotation = record_function(self._name)
            self._annotation.__enter__()
        self._timed = self._ranges.current is None
        if self._timed:
            self._ranges.current = self._name
            self._ranges.timer.enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timed:
            self._ranges.current = None
            if error is None:
                self._ranges.timer.exit(self._name)
        if self._annotation is not None:
            self._annotation.__exit__(kind, error, traceback)
            self._annotation = None
        if self._nvtx is not None:
            if self._loose:
                self._nvtx.end(self._opened)
            else:
                self._nvtx.pop()


class Ranges:
    """The five ranges of a step: `with ranges.forward: ...`; `current` is the open one.

    With `loose`, they need not nest with NVTX ranges that the job itself opens.
    """

    def __init__(self, timer: StepTimer, *, annotate: bool, nvtx: Emitter | None, loose: bool = False) -> None:
        self.timer = timer
        self.current: RangeName | None = None
        self.by_name = {name: Range(name, self, annotate=annotate, nvtx=nvtx, loose=loose) for name in RANGES}
        self.data_wait = self.by_name["data_wait"]
        self.h2d = self.by_name["h2d"]
        self.forward = self.by_name["forward"]
        self.backward = self.by_name["backward"]
        self.optimizer = self.by_name["optimizer"]

    def annotate(self, on: bool) -> None:
        """Set whether torch.profiler records from now on."""
        for item in self.by_name.values():
            item.annotated = on
