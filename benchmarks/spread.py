"""Trains a small model that is spread over ranks in ways rankscope's own models do not have. It does not use rankscope.

    torchrun --nproc-per-node=2 benchmarks/spread.py experts
    rankscope run script=benchmarks/spread.py world_size=2 -- fsdp_copy_engines

    experts            each rank holds some experts; `all_to_all_single` sends each the tokens that it works on
    uneven_experts     the same, but the expert of rank 0 gets three quarters of all tokens
    fsdp_kernels       FSDP2; kernels of NCCL gather the parameters
    fsdp_copy_engines  the same; NCCL gathers them with copy engines (into symmetric memory, without thread blocks)

Copy engines need NCCL 2.28 and a torch whose NCCL options have `cta_policy`.
"""

import argparse
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather

ZERO_CTA = 2  # NCCL_CTA_POLICY_ZERO of nccl.h
IN_FLIGHT = 3  # gathers of one size: one that runs, one that is copied out, one that waits
KINDS = ("experts", "uneven_experts", "fsdp_kernels", "fsdp_copy_engines")


class Exchange(torch.autograd.Function):
    """Send parts of a tensor's rows to all ranks; backward sends the gradients back."""

    @staticmethod
    def forward(context: Any, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        context.parts = sent, received
        output = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(output, rows.contiguous(), received, sent)
        return output

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        sent, received = context.parts
        output = gradient.new_empty(sum(sent), gradient.shape[1])
        dist.all_to_all_single(output, gradient.contiguous(), sent, received)
        return output, None, None


class Experts(nn.Module):
    """A layer whose MLP is another one on each rank. The first `share` of the tokens goes to the expert of rank 0."""

    def __init__(self, width: int, share: float) -> None:
        super().__init__()
        self.share = share
        self.norm = nn.LayerNorm(width)
        self.expert = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, rows: Tensor) -> Tensor:
        ranks, rank, count = dist.get_world_size(), dist.get_rank(), len(rows)
        first = round(count * self.share)
        others = [(count - first) // (ranks - 1)] * (ranks - 1) if ranks > 1 else []
        sent = [count - sum(others), *others]
        received = [sent[rank]] * ranks
        work: Tensor = Exchange.apply(self.norm(rows), sent, received)  # type: ignore[no-untyped-call]
        done: Tensor = Exchange.apply(self.expert(work), received, sent)  # type: ignore[no-untyped-call]
        return rows + done


class Block(nn.Module):
    """An MLP with a residual path."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, rows: Tensor) -> Tensor:
        output: Tensor = rows + self.mlp(rows)
        return output


class CopyEngines(AllGather):
    """Gathers into symmetric memory; NCCL uses copy engines for it if the communicator has the zero-CTA policy."""

    def __init__(self) -> None:
        self._buffers: dict[int, Iterator[Tensor]] = {}

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        count, group = math.prod(size), dist.distributed_c10d._get_default_group().group_name
        if count not in self._buffers:
            made = [symmetric.empty(count, dtype=dtype, device=device) for _ in range(IN_FLIGHT)]
            for buffer in made:
                symmetric.rendezvous(buffer, group)
            self._buffers[count] = itertools.cycle(made)
        return next(self._buffers[count]).view(*size)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


def make(kind: str, width: int, layers: int, device: torch.device) -> nn.Module:
    """Return the model of a kind, spread over the ranks."""
    if not kind.startswith("fsdp"):
        share = 0.75 if kind == "uneven_experts" else 1 / dist.get_world_size()
        experts = nn.Sequential(*(Experts(width, share) for _ in range(layers))).to(device)
        return experts  # each rank trains its own experts, and its own copy of the norms
    model = nn.Sequential(*(Block(width) for _ in range(layers))).to(device)
    gather = CopyEngines() if kind == "fsdp_copy_engines" else None
    for module in (*model, model):
        fully_shard(module)
        if gather is not None:
            module.set_custom_all_gather(gather)
    return model


def start(kind: str, device: torch.device) -> None:
    """Join the ranks."""
    if device.type == "cpu":
        dist.init_process_group("gloo")
        return
    torch.cuda.set_device(device)
    options = dist.ProcessGroupNCCL.Options()
    if kind == "fsdp_copy_engines":
        options.config.cta_policy = ZERO_CTA  # type: ignore[attr-defined]
        symmetric.set_backend("NCCL")
    dist.init_process_group("nccl", device_id=device, pg_options=options)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    start(arguments.kind, device)
    width, layers, rows = (4096, 8, 8192) if cuda else (64, 2, 256)
    torch.manual_seed(dist.get_rank())
    model = make(arguments.kind, width, layers, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(arguments.steps):
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            loss = model(torch.randn(rows, width, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
