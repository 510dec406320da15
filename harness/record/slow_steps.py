"""Notes where the main thread is while a step lasts far longer than usual: Python stacks, a few for each such step.

A thread sleeps until the open step would be too long: it wakes about once in three usual steps and does nothing then.
"""

import sys
import sysconfig
import threading
import time
from collections import deque
from pathlib import Path
from types import FrameType
from typing import Any

from rankscope.harness.group.hidden_thread import HiddenThread
from rankscope.harness.record.step_timer import StepTimer

_TIMES = 3.0  # the usual step
_LEAST_S = 0.05
_PER_STEP = 5
_KNOWN = 5  # steps from which the usual step is known
_FRAMES = 12
_OURS = str(Path(__file__).parents[1])


class SlowSteps:
    """Watches the steps of a `StepTimer` between `start` and `stop`; `found` has one entry for each stack."""

    def __init__(self, timer: StepTimer) -> None:
        self.found: list[dict[str, Any]] = []
        self._timer = timer
        self._main = threading.get_ident()
        self._ended = threading.Event()
        self._thread = HiddenThread(self._watch)
        paths = sysconfig.get_paths()
        self._libraries = tuple({paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], _OURS})

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        recent: deque[float] = deque(maxlen=50)
        seen: tuple[int, int] | None = None
        taken, wait = 0, _LEAST_S
        while not self._ended.wait(wait):
            opened = self._timer.opened
            if opened is None:
                wait = _LEAST_S
                continue
            if seen is not None and opened[0] != seen[0]:
                recent.append((opened[1] - seen[1]) * 1e-9 / max(1, opened[0] - seen[0]))
                taken = 0
            seen = opened
            if len(recent) < _KNOWN:
                wait = 0.01
                continue
            usual = sorted(recent)[len(recent) // 2]
            limit = max(_TIMES * usual, _LEAST_S)
            lasts = (time.perf_counter_ns() - opened[1]) * 1e-9
            if lasts < limit:
                wait = max(0.001, limit - lasts)
                continue
            if taken < _PER_STEP:
                self._take(opened[0])
                taken += 1
            wait = limit * (1 << taken)  # a long step is looked at less and less often

    def _take(self, step: int) -> None:
        frame = sys._current_frames().get(self._main)
        frames: list[FrameType] = []
        while frame is not None and len(frames) < 60:
            frames.append(frame)
            frame = frame.f_back
        own = next((at for at, item in enumerate(frames) if not self._of_library(item)), None)
        place = None
        if own is not None:
            place = _words(frames[own])
            if own > 0:
                place += f" ({frames[own - 1].f_code.co_name})"
        self.found.append({"step": step, "place": place, "stack": [_words(item) for item in frames[:_FRAMES]]})

    def _of_library(self, frame: FrameType) -> bool:
        path = frame.f_code.co_filename
        return path.startswith(self._libraries) or path.startswith("<")


def _words(frame: FrameType) -> str:
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
