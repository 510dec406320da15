"""What a planted fault can do to a rank: one method a place in the step, each of which does nothing by default.

A kind of fault is a subclass that overrides the places where it acts, and is registered by its name in `faults.py`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.conf.sections import FaultConfig
from rankscope.harness.group.process_group import RankContext

Collate = Callable[[Any], Any]


class Fault:
    """One fault on this rank. Between `scenario.step` and its end `active` is true on the ranks that it acts on."""

    needs_gpu = False
    drops_trace = False  # whether the rank is to leave its trace out

    def __init__(self, config: FaultConfig, context: RankContext, micro_steps: int) -> None:
        self.config = config
        self.context = context
        self.seconds = config.ms / 1000 / micro_steps  # of each micro-step
        self._active = torch.zeros(1, dtype=torch.bool).share_memory_()  # the loader's workers read it too

    @property
    def active(self) -> bool:
        """Whether the fault acts now, on this rank."""
        return bool(self._active)

    @property
    def here(self) -> bool:
        """Whether the fault acts on this rank in any step."""
        return self.config.rank in (self.context.rank, "all", "rotating")

    def begin(self, step: int) -> None:
        """Learn that `step` begins."""
        config = self.config
        last = config.step + config.steps if config.steps else None
        turn = config.rank != "rotating" or step % self.context.world_size == self.context.rank
        self._active.fill_(self.here and turn and config.step <= step and (last is None or step < last))
        if self.active:
            self.at_step(step)

    def attach(self, module: nn.Module) -> None:
        """Take the model, before it is wrapped."""

    def at_step(self, step: int) -> None:
        """Act at the start of `step`."""

    def on_batch(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Change the batch, still on the host."""
        return inputs, targets

    def on_copy(self) -> None:
        """Act where the batch is copied to the device."""

    def on_host(self) -> None:
        """Act before the forward pass is launched."""

    def on_device(self) -> None:
        """Act at the start of the forward pass."""

    def after_forward(self, loss: Tensor) -> None:
        """Act between the forward and the backward pass."""

    def after_backward(self) -> None:
        """Act before the optimizer's step, or the next micro-step."""

    def per_sample(self) -> None:
        """Act where a sample is read, in whatever process reads it."""

    def per_batch(self) -> None:
        """Act where samples become a batch, in whatever process does it."""
