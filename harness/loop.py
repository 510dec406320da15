"""The loop over the steps of a pass: trains, times, profiles and reports, in one order for every pass."""

from dataclasses import dataclass

from rankscope.harness.data import Batches
from rankscope.harness.faults import Fault
from rankscope.harness.process_group import RankContext
from rankscope.harness.profiler import StepProfiler
from rankscope.harness.progress import Progress
from rankscope.harness.ranges import Ranges
from rankscope.harness.schedule import Phase
from rankscope.harness.step_timer import StepTimer
from rankscope.harness.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Everything that takes part in a step; `profiler` is null in the plain pass."""

    plan: list[Phase]
    context: RankContext
    trainer: Trainer
    batches: Batches
    timer: StepTimer
    profiler: StepProfiler | None
    fault: Fault
    progress: Progress
    log_every: int

    def run(self) -> None:
        """Do all steps; after an error the open window of the profiler is written, and the error goes on."""
        ranges = Ranges(self.timer, annotate=self.profiler is not None, nvtx=self.context.cuda)
        self.context.barrier()
        if self.profiler is None:
            self._steps(ranges)
            return
        self.profiler.start()
        try:
            self._steps(ranges)
        except BaseException:
            self.profiler.abort()
            raise
        self.profiler.stop()

    def _steps(self, ranges: Ranges) -> None:
        timer = self.timer
        for step, phase in enumerate(self.plan):
            timer.begin(step, phase)
            self.fault.at_step(step)
            read_loss = step % self.log_every == 0
            self.trainer.step(self.batches, ranges, timer, self.fault, read_loss=read_loss)
            timer.end()
            self.progress.update("measure" if phase in ("measured", "active") else "warmup", step + 1)
            if self.profiler is not None:
                self._advance(self.profiler, step)
        timer.close()

    def _advance(self, profiler: StepProfiler, step: int) -> None:
        """Go to the profiler's next step; what opening or closing a window costs belongs to no step."""
        if profiler.closes_after(step):
            self.timer.close()
            self.progress.enter("export")
        elif profiler.opens_after(step):
            self.timer.close()
        profiler.step()
