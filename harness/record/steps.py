"""Advances timer, profiler and progress of a rank from step to step, in the same order in every pass."""

from dataclasses import dataclass

from rankscope.conf.contract import COUNTED, Phase
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.record.nsys_capture import Capture
from rankscope.harness.record.progress import Progress
from rankscope.harness.record.step_timer import StepTimer
from rankscope.harness.record.torch_profiler import StepProfiler


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Call `start`, then `begin`, `end` and `advance` for each step, then `stop`. The plain pass has no `profiler`."""

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
        """Begin a step of the plan. The previous step ends here if it is still open."""
        self.timer.begin(step, self.plan[step])
        if isinstance(self.profiler, Capture):
            self.profiler.begin(step)

    def end(self, step: int) -> None:
        """End a step of the plan: read its memory statistics and report the progress."""
        if isinstance(self.profiler, Capture):
            self.profiler.end(step)
        self.timer.end()
        self.progress.update("measure" if self.plan[step] in COUNTED else "warmup", step + 1)

    def advance(self, step: int) -> None:
        """Move the profiler to the next step. The time to open or close a window belongs to no step."""
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
        """Write the open window of the profiler after an error, if possible; never raises."""
        if self.profiler is not None:
            self.profiler.abort()
