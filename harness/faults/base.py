"""The base class of planted faults: one method for each place in a step, which does nothing by default.

A kind of fault is a subclass that overrides the places where it acts. `planted.py` registers it by name.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.conf.schema import RunConfig
from rankscope.conf.sections import FaultConfig
from rankscope.harness.group.process_group import RankContext

Collate = Callable[[Any], Any]


class Fault:
    """One fault on this rank. `active` is true from `scenario.step` to its end, on the ranks that it acts on."""

    needs_gpu = False
    drops_trace = False  # whether the rank does not write its trace

    def __init__(self, config: FaultConfig, context: RankContext, run: RunConfig) -> None:
        self.config = config
        self.context = context
        self.seconds = config.ms / 1000 / run.gradient_accumulation  # per micro-step
        self.forward_seconds = self.seconds / run.parallel.forwards  # per forward pass
        self._active = torch.zeros(1, dtype=torch.bool).share_memory_()  # shared with the loader's workers

    @property
    def active(self) -> bool:
        """Whether the fault acts on this rank now."""
        return bool(self._active)

    @property
    def here(self) -> bool:
        """Whether the fault acts on this rank in any step."""
        return self.config.rank in (self.context.rank, "all", "rotating")

    def begin(self, step: int) -> None:
        """Update `active` for the step that begins, and act at its start."""
        config = self.config
        last = config.step + config.steps if config.steps else None
        turn = config.rank != "rotating" or step % self.context.world_size == self.context.rank
        self._active.fill_(self.here and turn and config.step <= step and (last is None or step < last))
        if self.active:
            self.at_step(step)

    def attach(self, module: nn.Module) -> None:
        """Hook the model before it is wrapped."""

    def at_step(self, step: int) -> None:
        """Act at the start of `step`."""

    def on_batch(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Change the batch while it is on the host."""
        return inputs, targets

    def on_copy(self) -> None:
        """Act when the batch is copied to the device."""

    def on_host(self) -> None:
        """Act before the forward pass is launched."""

    def on_device(self) -> None:
        """Act at the start of the forward pass."""

    def after_forward(self, loss: Tensor) -> None:
        """Act between the forward and the backward pass."""

    def after_backward(self) -> None:
        """Act before the optimizer's step, or the next micro-step."""

    def per_sample(self) -> None:
        """Act when a sample is read, in the process that reads it."""

    def per_batch(self) -> None:
        """Act when samples become a batch, in the process that collates them."""
