"""From step to step: timer, profiler and progress of a rank, in one order for every pass and every kind of job."""

from dataclasses import dataclass

from rankscope.conf.contract import COUNTED, Phase
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.record.nsys_capture import Capture
from rankscope.harness.record.progress import Progress
from rankscope.harness.record.step_timer import StepTimer
from rankscope.harness.record.torch_profiler import StepProfiler


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Call `start`, then `begin`, `end`, `advance` for each step, then `stop`; no `profiler` in the plain pass."""

    plan: list[Phase]
    context: RankContext
    timer: StepTimer
    profiler: StepProfiler | Capture | None
    progress: Progress

    def start(self) -> None:
        """Meet the other ranks before step 0."""
        self.context.barrier()
        if self.profiler is not None:
            self.profiler.start()

    def begin(self, step: int) -> None:
        """Begin a step of the plan; the one before, if still open, ends here."""
        self.timer.begin(step, self.plan[step])
        if isinstance(self.profiler, Capture):
            self.profiler.begin(step)

    def end(self, step: int) -> None:
        """Take what is known at the step's end."""
        if isinstance(self.profiler, Capture):
            self.profiler.end(step)
        self.timer.end()
        self.progress.update("measure" if self.plan[step] in COUNTED else "warmup", step + 1)

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

    def stop(self) -> None:
        """End the last step and the profiler."""
        self.timer.close()
        if self.profiler is not None:
            self.profiler.stop()

    def abort(self) -> None:
        """After an error: write the open window of the profiler, if it can be; never raises."""
        if self.profiler is not None:
            self.profiler.abort()
