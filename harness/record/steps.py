"""Advances timer, profiler and progress of a rank from step to step, and from window to window."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rankscope.conf.contract import COUNTED, Phase
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.record.nsys_capture import Capture
from rankscope.harness.record.progress import Progress
from rankscope.harness.record.schedule import Plan
from rankscope.harness.record.slow_steps import SlowSteps
from rankscope.harness.record.step_timer import StepTimer
from rankscope.harness.record.timed_collectives import TimedCollectives
from rankscope.harness.record.torch_profiler import StepProfiler

Profiler = StepProfiler | Capture
_FEWEST = 3  # steps of a job that say anything


@dataclass(kw_only=True)
class Window:
    """One window of the process; `first` is the number of its first step."""

    plan: Plan
    first: int
    profiler: Profiler | None = None
    timed: TimedCollectives | None = None
    slow: SlowSteps | None = None
    closed: bool = False
    skipped: str | None = None  # why it was not recorded

    @property
    def last(self) -> int:
        return self.first + len(self.plan.phases) - 1

    def phase(self, step: int) -> Phase:
        return self.plan.phases[step - self.first]


class Steps:
    """Call `start`, then `begin`, `end` and `advance` for each step until `complete`, then `stop`.

    `opened` gives a window what records it; `closed` writes its files. Both are called by all ranks at the same step.
    """

    def __init__(
        self,
        *,
        plans: Sequence[Plan],
        seconds: float,
        context: RankContext,
        timer: StepTimer,
        progress: Progress,
        opened: Callable[[Window], None],
        closed: Callable[[Window], None],
    ) -> None:
        self.context, self.timer, self.progress = context, timer, progress
        self.windows: list[Window] = []
        self.complete = False
        self.waiting = list(plans)
        self._seconds = seconds
        self._opened, self._closed = opened, closed
        self._began_ns = 0  # the counted steps of the open window

    @property
    def window(self) -> Window:
        """The open window, or the last one."""
        return self.windows[-1]

    @property
    def profiler(self) -> Profiler | None:
        return self.window.profiler if self.windows else None

    @property
    def needed(self) -> int:
        """How many steps the start makes, as far as it is known."""
        return sum(len(window.plan.phases) for window in self.windows) + sum(len(p.phases) for p in self.waiting)

    def start(self) -> None:
        """Meet the other ranks before step 0."""
        self.context.barrier("start")
        self._open_next(0)

    def begin(self, step: int) -> None:
        """Begin a step. The previous step ends here if it is still open."""
        phase = self.window.phase(step)
        if phase in COUNTED and (step == self.window.first or self.window.phase(step - 1) not in COUNTED):
            self._began_ns = time.perf_counter_ns()
        self.timer.begin(step, phase)
        if isinstance(self.profiler, Capture):
            self.profiler.begin(step)

    def end(self, step: int) -> None:
        """End a step: read its memory statistics and report the progress."""
        if isinstance(self.profiler, Capture):
            self.profiler.end(step)
        self.timer.end()
        self.progress.update("measure" if self.window.phase(step) in COUNTED else "warmup", step + 1)

    def advance(self, step: int) -> None:
        """Go to the next step or window. The time to open or close a window belongs to no step."""
        window, profiler = self.window, self.profiler
        if step < window.last:
            if profiler is not None:
                self._step_profiler(profiler, step)
            return
        self.timer.close()
        if profiler is not None:
            self._step_profiler(profiler, step)
        elif more := self._missing(window):
            window.plan.phases += ["measured"] * more
            self.progress.expect(self.needed)
            return
        self._close(window)
        self._open_next(step + 1)

    def stop(self) -> None:
        """End the last step and close the open window, if there is one."""
        self.timer.close()
        if self.windows and not self.window.closed and self.window.skipped is None:
            self._close(self.window)
        self.complete = True

    def ended_early(self, steps: int) -> int:
        """Close the open window of a job that has ended by itself after `steps` steps; return its counted steps.

        If all of them were warm-up and there are at least three, only the first third is: the rest counts.
        """
        window = self.window
        made = steps - window.first
        del window.plan.phases[made:]
        if window.plan.kind in ("plain", "timed") and window.plan.counted == 0 and made >= _FEWEST:
            kept = made // 3
            window.plan.phases[kept:] = ["measured"] * (made - kept)
            self.timer.relabel(window.first + kept, "measured")
        self.stop()
        window.closed = window.plan.counted > 0  # otherwise its files say that it failed
        return window.plan.counted

    def again(self, step: int) -> None:
        """Begin the open step anew: what came before it is none of the loop's steps."""
        self.timer.drop()
        self.timer.begin(step, self.window.phase(step))

    def adopt(self, timer: StepTimer, made: int) -> None:
        """Take the steps that `timer` has timed as those of the first window."""
        window = Window(plan=self.waiting.pop(0), first=0)
        phases = window.plan.phases
        phases += ["measured"] * (made - len(phases))
        self.timer = timer
        for step in range(made):
            if phases[step] != "measured":
                timer.relabel_one(step, phases[step])
        self.windows.append(window)

    def dismiss(self) -> None:
        """Stop what records the open window, and keep nothing."""
        if self.windows and self.window.slow is not None:
            self.window.slow.stop()

    def abort(self) -> None:
        """Write the open window of the profiler after an error, if possible; never raises."""
        if self.windows and self.window.slow is not None:
            self.window.slow.stop()
        if self.profiler is not None and not self.window.closed:
            self.profiler.abort()

    def _step_profiler(self, profiler: Profiler, step: int) -> None:
        if profiler.closes_after(step):
            self.timer.close()
            self.progress.enter("export")
        elif profiler.opens_after(step):
            self.timer.close()
        profiler.step()

    def _missing(self, window: Window) -> int:
        """Return how many more steps the plain window needs to last long enough; the same number on every rank."""
        if window.plan.kind != "plain" or self._seconds == 0:
            return 0
        took = (time.perf_counter_ns() - self._began_ns) * 1e-9
        took = self.context.largest(took)
        return max(0, math.ceil((self._seconds - took) / (took / window.plan.counted)))

    def _open_next(self, step: int) -> None:
        """Open the next window that can be recorded here; the job is complete if there is none.

        Ranks that no longer step alike open none: the step numbers of a rank say nothing of another's.
        """
        together = not self.windows or self._meet()
        while self.waiting and together:
            self._open(step)
            if self.window.skipped is None:
                return
        self.complete = True

    def _meet(self) -> bool:
        """Wait for all ranks before a window opens; if they are apart only a window that is left would be missing."""
        if not self.waiting:
            return True
        self.context.synchronize()
        return self.context.barrier("window") or not self.context.apart

    def _open(self, step: int) -> None:
        window = Window(plan=self.waiting.pop(0), first=step)
        self.windows.append(window)
        self._opened(window)
        if window.skipped is not None:
            window.plan.phases.clear()
        elif window.profiler is not None:
            window.profiler.start()
        elif window.timed is not None:
            window.timed.start()
        elif window.slow is not None:
            window.slow.start()

    def _close(self, window: Window) -> None:
        if window.slow is not None:
            window.slow.stop()
        if window.timed is not None:
            self.context.synchronize()
            window.timed.stop()
        if window.profiler is not None:
            window.profiler.stop()
        window.closed = True
        self._closed(window)
