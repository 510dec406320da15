"""Spreads the gpt model over the ranks with torch's own means: FSDP2, tensor parallelism, pipeline stages.

Input: the bare model, the same on every rank. Output: the module that a rank calls, or its stages of a pipeline. The
output matrix of a pipeline's last stage is not tied to the embedding of the first.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from rankscope.conf import ConfigError
from rankscope.conf.schema import RunConfig
from rankscope.conf.sections import ParallelConfig
from rankscope.harness.group.process_group import RankContext
from rankscope.models.gpt import GPT, Attention, loss


def shard(module: GPT, config: RunConfig, context: RankContext) -> nn.Module:
    """Shard the parameters of each block, and of the rest, over all ranks or (hsdp) over `shards` of them."""
    parallel, blocks = config.parallel, module.blocks
    options: dict[str, Any] = {
        "mesh": _mesh(config, context),
        "reshard_after_forward": parallel.reshard_after_forward,
    }
    for block in blocks:
        fully_shard(block, **options)
    fully_shard(module, **options)
    sharded: list[Any] = list(blocks)
    for at, block in enumerate(sharded if parallel.prefetch else ()):
        block.set_modules_to_forward_prefetch(sharded[at + 1 : at + 1 + parallel.prefetch])
        block.set_modules_to_backward_prefetch(sharded[max(0, at - parallel.prefetch) : at][::-1])
    return module


def _mesh(config: RunConfig, context: RankContext) -> DeviceMesh:
    kind, ranks = context.device.type, config.world_size
    if config.parallelism == "hsdp":
        shape = (ranks // config.parallel.shards, config.parallel.shards)
        return init_device_mesh(kind, shape, mesh_dim_names=("dp_replicate", "dp_shard"))
    return init_device_mesh(kind, (ranks,), mesh_dim_names=("fsdp" if config.parallelism == "fsdp" else "tp",))


def split_tensors(module: GPT, config: RunConfig, context: RankContext) -> nn.Module:
    """Give each rank a part of the heads and of the MLP's width; norms and embeddings are on every rank."""
    attention = module.blocks[0].attention
    assert isinstance(attention, Attention)
    heads = module.tokens.embedding_dim // attention.size
    if heads % config.world_size:
        raise ConfigError(f"parallel=tp: {config.world_size} ranks cannot share {heads} heads evenly")
    plan = {"attention.qkv": ColwiseParallel(), "attention.out": RowwiseParallel()}
    plan |= {"mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()}
    for block in module.blocks:
        parallelize_module(block, _mesh(config, context), plan)
    return module


class Stage(nn.Module):
    """Some of the blocks; the first stage has the embeddings, the last the final norm and the output matrix."""

    def __init__(self, whole: GPT, blocks: Sequence[nn.Module], *, first: bool, last: bool) -> None:
        super().__init__()
        self.tokens = whole.tokens if first else None
        self.positions = whole.positions if first else None
        self.blocks = nn.ModuleList(blocks)
        self.norm = whole.norm if last else None
        self.head = nn.Parameter(whole.tokens.weight.detach().clone()) if last else None

    def forward(self, x: Tensor) -> Tensor:
        """Map token ids or the output of the stage before to this stage's output."""
        if self.tokens is not None and self.positions is not None:
            x = self.tokens(x) + self.positions[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return x if self.norm is None or self.head is None else F.linear(self.norm(x), self.head)


class Pipeline:
    """The stages of one rank and their schedule."""

    def __init__(self, module: GPT, config: RunConfig, context: RankContext) -> None:
        parallel, ranks = config.parallel, config.world_size
        count = ranks * parallel.parts
        blocks = list(module.blocks)
        if len(blocks) < count:
            raise ConfigError(f"parallel=pp: {count} stages need as many blocks, and the model has {len(blocks)}")
        edges = [round(len(blocks) * at / count) for at in range(count + 1)]
        mine = range(context.rank, count, ranks)
        self.parts = nn.ModuleList(
            Stage(module, blocks[edges[at] : edges[at + 1]], first=at == 0, last=at == count - 1) for at in mine
        )
        stages = [PipelineStage(part, at, count, context.device) for part, at in zip(self.parts, mine, strict=True)]
        self.first, self.last = 0 in mine, count - 1 in mine
        self._schedule = _schedule(parallel, stages)

    def before_forward(self, act: Callable[[], None]) -> None:
        """Call `act` before each forward pass of each stage."""
        for part in self.parts:
            part.register_forward_pre_hook(lambda *_: act())

    def step(self, inputs: Tensor, targets: Tensor, losses: list[Tensor]) -> None:
        """Do forward and backward of a batch in micro-batches; the last stage appends the losses."""
        given = (inputs,) if self.first else ()
        if self.last:
            self._schedule.step(*given, target=targets, losses=losses)
        else:
            self._schedule.step(*given)


def _schedule(parallel: ParallelConfig, stages: list[PipelineStage]) -> Any:
    if parallel.schedule == "interleaved":
        return ScheduleInterleaved1F1B(stages, parallel.micro_batches, loss_fn=loss)  # type: ignore[arg-type]
    kind = ScheduleGPipe if parallel.schedule == "gpipe" else Schedule1F1B
    return kind(stages[0], parallel.micro_batches, loss_fn=loss)
