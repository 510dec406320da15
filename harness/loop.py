"""The loop over the steps of a pass: does the task, times, profiles and reports, in one order for every pass."""

from dataclasses import dataclass
from typing import Protocol

from rankscope.harness.capture import Capture
from rankscope.harness.data import Batches
from rankscope.harness.faults import Faults
from rankscope.harness.process_group import RankContext
from rankscope.harness.profiler import StepProfiler
from rankscope.harness.progress import Progress
from rankscope.harness.ranges import Ranges
from rankscope.harness.schedule import Phase
from rankscope.harness.step_timer import StepTimer


class Task(Protocol):
    """What a step does: training, validation or inference."""

    def step(self, batches: Batches, ranges: Ranges, timer: StepTimer, faults: Faults, *, read_loss: bool) -> None:
        """Do one step."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Everything that takes part in a step; `profiler` is null in the plain pass."""

    plan: list[Phase]
    context: RankContext
    task: Task
    batches: Batches
    timer: StepTimer
    ranges: Ranges
    profiler: StepProfiler | Capture | None
    faults: Faults
    progress: Progress
    log_every: int

    def run(self) -> None:
        """Do all steps; after an error the open window of the profiler is written, and the error goes on."""
        self.context.barrier()
        if self.profiler is None:
            self._all_steps()
            return
        self.profiler.start()
        try:
            self._all_steps()
        except BaseException:
            self.profiler.abort()
            raise
        self.profiler.stop()

    def step(self, step: int) -> None:
        """Do one step of the plan."""
        timer, phase = self.timer, self.plan[step]
        timer.begin(step, phase)
        if isinstance(self.profiler, Capture):
            self.profiler.begin(step)
        self.faults.at_step(step)
        self.task.step(self.batches, self.ranges, timer, self.faults, read_loss=step % self.log_every == 0)
        if isinstance(self.profiler, Capture):
            self.profiler.end(step)
        timer.end()
        self.progress.update("measure" if phase in ("measured", "active") else "warmup", step + 1)

    def advance(self, step: int) -> None:
        """Go on to the profiler's next step; what opening or closing a window costs belongs to no step."""
        profiler = self.profiler
        if profiler is None:
            return
        if profiler.closes_after(step):
            self.timer.close()
            self.progress.enter("export")
        elif profiler.opens_after(step):
            self.timer.close()
        profiler.step()

    def _all_steps(self) -> None:
        for step in range(len(self.plan)):
            self.step(step)
            self.advance(step)
        self.timer.close()
