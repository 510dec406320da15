"""Times the marks of a source that may turn out not to be the script's steps; they count if the script ends first.

A preview meets no other rank and touches no device.
"""

import torch

from rankscope.harness.observe.marks import Source
from rankscope.harness.record.ranges import Ranges
from rankscope.harness.record.step_timer import StepTimer


class Preview:
    """The steps of `source` so far; a stronger source begins again."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.timer = StepTimer(torch.device("cpu"))
        self.timer.waits_known = False
        self.ranges = Ranges(self.timer, annotate=False, nvtx=None, loose=True)
        self.samples: list[int | None] = []
        self.steps = 0  # complete ones
        self.timer.begin(0, "measured")

    def mark(self, samples: int | None) -> None:
        """End a step and begin the next."""
        self.samples.append(samples)
        self.steps += 1
        self.timer.begin(self.steps, "measured")
