"""The observer of a user's loop: an `Instrument` or torch itself tells it about ranges, batches and steps."""

from typing import Any

from rankscope.harness.observe.marks import Marks, Source
from rankscope.harness.observe.samples import samples_of
from rankscope.harness.record.ranges import Ranges
from rankscope.harness.record.step_timer import StepTimer


class Observer:
    """Counts batches and their samples; `ranges` is null while nothing is timed."""

    def __init__(self) -> None:
        self.ranges: Ranges | None = None
        self.marks = Marks(self)
        self.batches = 0
        self.samples: int | None = 0  # since the last step; None if a batch does not tell

    def begin(self) -> None:
        """Begin the first step, all ranks together; later calls do nothing."""
        raise NotImplementedError

    def mark(self, source: Source) -> None:
        """End the open step and begin the next, if steps are those of `source`."""
        raise NotImplementedError

    def changed(self, source: Source) -> None:
        """The loop goes by another optimizer or loader from here on; a step ends here."""
        self.mark(source)

    @property
    def timer(self) -> StepTimer | None:
        """The timer of the steps, null while nothing is timed."""
        return None if self.ranges is None else self.ranges.timer

    def batch(self, samples: int | None, *, first: bool) -> None:
        """Count a batch; `first` of its epoch."""
        self.batches += 1
        self.samples = None if samples is None or self.samples is None else self.samples + samples
        if first and self.timer is not None:
            self.timer.mark_first_of_epoch()

    def loaded(self, batch: Any, *, first: bool, counted: bool) -> None:
        """Handle a batch from an `Instrument`; `counted` if its DataLoader has counted it already."""
        if not counted:
            self.batch(samples_of(batch), first=first)
        self.marks.guess_forward()

    def take_samples(self) -> int | None:
        """Return the samples of the step that ends, and start counting again."""
        taken, self.samples = self.samples, 0
        return taken
