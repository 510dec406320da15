"""Steps without gradients: a validation loop on every rank, and a replica that serves one batch after another."""

from typing import Any

import torch
import torch.distributed as dist

from rankscope.harness.faults.planted import Faults
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.record.ranges import Ranges
from rankscope.harness.record.step_timer import StepTimer
from rankscope.harness.reference.data import Batches
from rankscope.harness.reference.replica import Replica


class Evaluator:
    """A validation loop: sums the loss on the device, and averages it over the ranks when it is read."""

    def __init__(self, context: RankContext, replica: Replica) -> None:
        self._replica = replica
        self._grouped = dist.is_initialized()
        self._sums = torch.zeros(2, dtype=torch.float64 if not context.cuda else torch.float32, device=context.device)
        replica.raw.eval()

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def step(self, batches: Batches, ranges: Ranges, timer: StepTimer, faults: Faults, *, read_loss: bool) -> None:
        """Evaluate one batch; with `read_loss` all ranks all-reduce loss and count."""
        replica = self._replica
        replica.begin_step()
        with ranges.data_wait:
            inputs, targets, first = batches.next()
        if first:
            timer.mark_first_of_epoch()
        with ranges.h2d:
            faults.act("on_copy")
            inputs, targets = replica.to_device(inputs), replica.to_device(targets)
        faults.act("on_host")
        with ranges.forward:
            faults.act("on_device")
            with replica.autocast():
                loss = replica.model.loss(replica.module(inputs), targets)
            self._sums[0] += loss.detach()
            self._sums[1] += 1
        if read_loss:
            sums = self._sums.clone()
            if self._grouped:
                dist.all_reduce(sums)
            timer.read_loss(sums[0] / sums[1])
            self._sums.zero_()


class Server:
    """Serves one batch after another, each alone on the device: a step is the latency of one batch.

    A step begins with the batch in host memory and ends when the device has the output. The next batch is loaded
    between two steps, so the time of the loader belongs to no step.
    """

    def __init__(self, context: RankContext, replica: Replica) -> None:
        self._context = context
        self._replica = replica
        self._next: Any = None
        replica.raw.eval()

    @torch.inference_mode()  # type: ignore[untyped-decorator, unused-ignore]
    def step(self, batches: Batches, ranges: Ranges, timer: StepTimer, faults: Faults, *, read_loss: bool) -> None:
        """Serve one batch; there is no loss to read."""
        replica = self._replica
        if self._next is None:
            self._next = batches.next()[0]
        replica.begin_step()
        with ranges.h2d:
            faults.act("on_copy")
            inputs = replica.to_device(self._next)
        faults.act("on_host")
        with ranges.forward:
            faults.act("on_device")
            with replica.autocast():
                replica.module(inputs)
        self._context.synchronize()
        timer.close()
        with ranges.data_wait:
            self._next = batches.next()[0]
