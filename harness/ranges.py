"""The named ranges of a step, opened by one call: for the timer, for torch.profiler and for Nsight Systems.

`record_function` costs several microseconds even when nobody listens, so it is entered only in the torch pass. NVTX
costs well under one microsecond without a listener and is entered on every GPU; on a CPU in the nsys pass.
"""

from types import TracebackType

from torch.profiler import record_function

from rankscope.harness.nvtx_ranges import Emitter
from rankscope.harness.step_timer import DEVICE_RANGES, StepTimer

NAMES = ("data_wait", *DEVICE_RANGES)


class Range:
    """A context manager that can be entered again and again, but not inside itself."""

    def __init__(self, name: str, timer: StepTimer, *, annotate: bool, nvtx: Emitter | None) -> None:
        self._name = name
        self._timer = timer
        self._annotate = annotate
        self._nvtx = nvtx
        self._annotation: record_function | None = None

    def __enter__(self) -> None:
        if self._nvtx is not None:
            self._nvtx.push(self._name)
        if self._annotate:
            self._annotation = record_function(self._name)
            self._annotation.__enter__()
        self._timer.enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._timer.exit(self._name)
        if self._annotation is not None:
            self._annotation.__exit__(kind, error, traceback)
            self._annotation = None
        if self._nvtx is not None:
            self._nvtx.pop()


class Ranges:
    """The five ranges of a step: `with ranges.forward: ...`."""

    def __init__(self, timer: StepTimer, *, annotate: bool, nvtx: Emitter | None) -> None:
        made = {name: Range(name, timer, annotate=annotate, nvtx=nvtx) for name in NAMES}
        self.data_wait = made["data_wait"]
        self.h2d = made["h2d"]
        self.forward = made["forward"]
        self.backward = made["backward"]
        self.optimizer = made["optimizer"]
