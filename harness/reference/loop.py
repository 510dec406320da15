"""The loop of the reference model over the steps of a pass, with the planted faults."""

from dataclasses import dataclass
from typing import Protocol

from rankscope.harness.faults.planted import Faults
from rankscope.harness.record.ranges import Ranges
from rankscope.harness.record.step_timer import StepTimer
from rankscope.harness.record.steps import Steps
from rankscope.harness.reference.data import Batches


class Task(Protocol):
    """What a step does: training, validation or inference."""

    def step(self, batches: Batches, ranges: Ranges, timer: StepTimer, faults: Faults, *, read_loss: bool) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Everything that takes part in a step."""

    steps: Steps
    task: Task
    batches: Batches
    ranges: Ranges
    faults: Faults
    log_every: int

    def run(self) -> None:
        """Do all steps. After an error, write the open window of the profiler and re-raise."""
        self.steps.start()
        try:
            step = 0
            while not self.steps.complete:
                self.step(step)
                self.steps.advance(step)
                step += 1
        except BaseException:
            self.steps.abort()
            raise
        self.steps.stop()

    def step(self, step: int) -> None:
        """Do one step of the plan."""
        self.steps.begin(step)
        self.faults.at_step(step)
        read_loss = step % self.log_every == 0
        self.task.step(self.batches, self.ranges, self.steps.timer, self.faults, read_loss=read_loss)
        self.steps.end(step)
