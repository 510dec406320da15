"""Faults that cost time: on the device, on the host, in the loader, in copies, in memory, in the batch."""

import gc
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.conf.schema import RunConfig
from rankscope.conf.sections import FaultConfig
from rankscope.harness.faults.base import Fault
from rankscope.harness.group.process_group import RankContext

_TRIALS = 20
_COPY_BYTES = 8 << 20
_OBJECTS = 100_000  # how many are added at a time, until a collection takes long enough


class Compute(Fault):
    """Extra matrix products on the device, which take about `ms`."""

    def __init__(self, config: FaultConfig, context: RankContext, run: RunConfig) -> None:
        super().__init__(config, context, run)
        self._work = extra_work(context, self.forward_seconds) if self.here else None

    def on_device(self) -> None:
        if self._work is not None:
            self._work()


class Host(Fault):
    """Python sleeps for `ms` before it launches the step."""

    def on_host(self) -> None:
        time.sleep(self.seconds)


class Data(Fault):
    """The loader takes `ms` longer for each batch, without using the CPU."""

    def per_batch(self) -> None:
        time.sleep(self.seconds)


class Storage(Fault):
    """Each sample takes `ms` to arrive, as from a slow disk or network; the reader waits without using the CPU."""

    def per_sample(self) -> None:
        time.sleep(self.config.ms / 1000)


class Decode(Fault):
    """Each sample takes `ms` of CPU time to decode; processes that share cores slow each other down."""

    def per_sample(self) -> None:
        """Compute until this thread has used `ms` of CPU time."""
        end = time.thread_time_ns() + round(self.config.ms * 1e6)
        while time.thread_time_ns() < end:
            sum(range(1000))


class Garbage(Fault):
    """A full garbage collection over enough objects to take about `ms`."""

    def __init__(self, config: FaultConfig, context: RankContext, run: RunConfig) -> None:
        super().__init__(config, context, run)
        self._held: list[Any] = []
        if self.here:
            gc.collect()
            gc.freeze()  # exclude the objects of torch, so that only ours take time
            while (took := collection_s()) < 0.5 * self.seconds:
                self._held += [[] for _ in range(_OBJECTS)]
            del self._held[round(len(self._held) * self.seconds / took) :]
            self._held += [[] for _ in range(round(len(self._held) * max(0.0, self.seconds / collection_s() - 1)))]

    def on_host(self) -> None:
        gc.collect()


class Copy(Fault):
    """Copies from pageable memory to the device that take about `ms`, on the stream that computes."""

    needs_gpu = True

    def __init__(self, config: FaultConfig, context: RankContext, run: RunConfig) -> None:
        super().__init__(config, context, run)
        self._work: Callable[[], None] | None = None
        if self.here:
            source = torch.empty(_COPY_BYTES, dtype=torch.uint8)
            target = torch.empty_like(source, device=context.device)
            self._work = repeated(lambda: target.copy_(source), context, self.seconds)

    def on_copy(self) -> None:
        if self._work is not None:
            self._work()


class Item(Fault):
    """`.item()` on the output of every block: the host waits for the device each time."""

    def attach(self, module: nn.Module) -> None:
        """Hook the blocks, or the children of a model without blocks."""
        for block in getattr(module, "blocks", None) or module.children():
            block.register_forward_hook(self._read)

    def _read(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if self.active:
            output.detach().flatten()[0].item()


class CpuCopy(Fault):
    """`.cpu()` on the complete output of the model, as in code that computes metrics on the host."""

    def attach(self, module: nn.Module) -> None:
        module.register_forward_hook(self._copy)

    def _copy(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if self.active:
            output.detach().cpu()


class Synchronize(Fault):
    """torch.cuda.synchronize() after the forward and after the backward pass, as in code that measures times."""

    needs_gpu = True

    def after_forward(self, loss: Tensor) -> None:
        torch.cuda.synchronize()

    def after_backward(self) -> None:
        torch.cuda.synchronize()


class Allocator(Fault):
    """The allocator's cache is freed in every step, so that memory must be allocated by the driver again."""

    needs_gpu = True

    def after_backward(self) -> None:
        torch.cuda.empty_cache()


class Lengths(Fault):
    """Sequences of unequal length: all ranks except the chosen one get shorter ones (`all`: each a random length).

    If samples are not sequences, the batch is shortened instead.
    """

    def __init__(self, config: FaultConfig, context: RankContext, run: RunConfig) -> None:
        super().__init__(config, context, run)
        self._random = torch.Generator().manual_seed(context.rank)

    @property
    def here(self) -> bool:
        """Whether this rank's samples are shortened."""
        return self.config.rank in ("all", "rotating") or self.config.rank != self.context.rank

    def on_batch(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Keep a share of each sequence, or of the batch."""
        share = self.config.share
        if self.config.rank == "all":
            share += (1 - share) * float(torch.rand((), generator=self._random))
        if inputs.dim() == 2 and not inputs.is_floating_point():  # token ids (batch, time)
            kept = max(1, round(share * inputs.shape[1]))
            return inputs[:, :kept].contiguous(), targets[:, :kept].contiguous()
        kept = max(1, round(share * len(inputs)))
        return inputs[:kept], targets[:kept]


def collection_s() -> float:
    """Return the time of a full garbage collection (s), the shortest of three."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        gc.collect()
        times.append(time.perf_counter() - began)
    return min(times)


def extra_work(context: RankContext, seconds: float) -> Callable[[], None]:
    """Return a function whose matrix products keep the device busy for about `seconds`, measured here once."""
    side = 2048 if context.cuda else 512
    matrix = torch.randn(side, side, device=context.device)

    def once() -> None:
        with torch.no_grad():
            torch.mm(matrix, matrix)

    return repeated(once, context, seconds)


def repeated(once: Callable[[], Any], context: RankContext, seconds: float) -> Callable[[], None]:
    """Return a function that repeats `once` for about `seconds`, measured here once."""
    for _ in range(3):
        once()
    context.synchronize()
    began = time.perf_counter()
    for _ in range(_TRIALS):
        once()
    context.synchronize()
    each = (time.perf_counter() - began) / _TRIALS
    count = max(1, round(seconds / each))

    def run() -> None:
        for _ in range(count):
            once()

    return run
