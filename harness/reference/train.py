"""The training step of one rank: its replica of the model, the optimizer, and a method that does one step."""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankscope.conf.schema import RunConfig
from rankscope.conf.sections import OptimizerConfig
from rankscope.harness.faults.planted import Faults
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.record.ranges import Ranges
from rankscope.harness.record.step_timer import StepTimer
from rankscope.harness.reference.data import Batches
from rankscope.harness.reference.replica import Replica

if TYPE_CHECKING:
    from rankscope.harness.reference.parallel import Pipeline


class Trainer:
    """Trains the replica of one rank, with its optimizer and scaler."""

    def __init__(self, config: RunConfig, context: RankContext, replica: Replica) -> None:
        self._config = config
        self._replica = replica
        self.optimizer = make_optimizer(config.optimizer, replica.raw)
        self.scaler = torch.amp.GradScaler(context.device.type, enabled=config.precision.name == "fp16")

    def step(self, batches: Batches, ranges: Ranges, timer: StepTimer, faults: Faults, *, read_loss: bool) -> None:
        """Do one optimizer step over all its micro-steps; gradients are reduced in the last one."""
        count = self._config.gradient_accumulation
        losses: list[Tensor] = []
        replica = self._replica
        replica.begin_step()
        for micro in range(count):
            inputs, targets = _next_batch(batches, ranges, timer, faults, replica)
            with self._local_gradients() if micro < count - 1 else nullcontext():
                with ranges.forward:
                    faults.act("on_device")
                    with replica.autocast():
                        loss = replica.model.loss(replica.module(inputs), targets)
                faults.act("after_forward", loss)
                if read_loss:
                    losses.append(loss.detach().clone())  # the next replay of a CUDA graph overwrites its output
                with ranges.backward:
                    self.scaler.scale(loss / count if count > 1 else loss).backward()
            faults.act("after_backward")
        with ranges.optimizer:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
        if losses:
            timer.read_loss(torch.stack(losses).mean())

    def _local_gradients(self) -> AbstractContextManager[Any]:
        ddp = self._replica.ddp
        return ddp.no_sync() if ddp is not None and self._config.ddp.no_sync else nullcontext()


class PipelineTrainer:
    """Trains the stages of one rank of a pipeline. Every rank loads the same batches."""

    def __init__(self, config: RunConfig, replica: Replica, pipeline: "Pipeline") -> None:
        self._replica, self._pipeline = replica, pipeline
        self.optimizer = make_optimizer(config.optimizer, replica.raw)

    def step(self, batches: Batches, ranges: Ranges, timer: StepTimer, faults: Faults, *, read_loss: bool) -> None:
        """Do one step. Forward and backward passes alternate, and both wait for other stages: one range, backward."""
        inputs, targets = _next_batch(batches, ranges, timer, faults, self._replica)
        losses: list[Tensor] = []
        with ranges.forward:  # empty, so that every step has all parts
            pass
        with ranges.backward, self._replica.autocast():
            self._pipeline.step(inputs, targets, losses)
        faults.act("after_backward")
        with ranges.optimizer:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        if read_loss and losses:
            timer.read_loss(torch.stack([loss.detach() for loss in losses]).mean())


def _next_batch(
    batches: Batches, ranges: Ranges, timer: StepTimer, faults: Faults, replica: Replica
) -> tuple[Tensor, Tensor]:
    """Wait for a batch and copy it to the device; returns inputs and targets."""
    with ranges.data_wait:
        inputs, targets, first = batches.next()
    if first:
        timer.mark_first_of_epoch()
    inputs, targets = faults.on_batch(inputs, targets)
    with ranges.h2d:
        faults.act("on_copy")
        inputs, targets = replica.to_device(inputs), replica.to_device(targets)
    faults.act("on_host")
    return inputs, targets


def make_optimizer(config: OptimizerConfig, module: nn.Module) -> torch.optim.Optimizer:
    """Build AdamW, or SGD with momentum 0.9, in the configured implementation."""
    options: dict[str, Any] = {
        "lr": config.lr,
        "weight_decay": config.weight_decay,
        "foreach": config.impl == "foreach",
        "fused": config.impl == "fused",
    }
    # torch's implementations for many tensors at once do not mix sharded parameters with plain ones
    kinds: dict[type, list[Tensor]] = {}
    for parameter in module.parameters():
        kinds.setdefault(type(parameter.data), []).append(parameter)
    groups = [{"params": found} for found in kinds.values()]
    if config.name == "sgd":
        return torch.optim.SGD(groups, momentum=0.9, **options)
    return torch.optim.AdamW(groups, **options)
