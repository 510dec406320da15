"""Run by torchrun: trains the tiny gpt for three steps in each way of spreading it, and prints the losses as JSON.

Data parallel ranks have half of the batch each, all others the complete one, so all losses are those of one batch.
"""

import json
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rankscope.conf import parse_config
from rankscope.harness.group.process_group import context_of
from rankscope.harness.reference.replica import Replica
from rankscope.harness.reference.train import make_optimizer

WAYS: tuple[dict[str, Any], ...] = (
    {"name": "ddp"},
    {"name": "fsdp"},
    {"name": "fsdp", "prefetch": 1, "reshard_after_forward": False},
    {"name": "tp"},
    {"name": "pp", "schedule": "gpipe"},
    {"name": "pp", "schedule": "1f1b"},
)
STEPS = 3


def losses_of(way: dict[str, Any]) -> list[float]:
    config = parse_config(
        {"world_size": 2, "batch_size": 8, "device": "cpu", "parallel": way, "model": {"name": "gpt", "size": "tiny"}}
    )
    replica = Replica(config, context_of(torch.device("cpu"), "gloo", None))
    optimizer = make_optimizer(config.optimizer, replica.raw)
    ids = torch.arange(8 * 65).view(8, 65) * 37 % 512
    if config.replicas == 2:
        ids = ids[dist.get_rank() * 4 :][:4]
    found = []
    for _ in range(STEPS):
        inputs, targets = ids[:, :-1], ids[:, 1:]
        if replica.pipeline is not None:
            parts: list[Tensor] = []
            replica.pipeline.step(inputs, targets, parts)
            loss = torch.stack(parts).mean().detach() if parts else torch.zeros(())
        else:
            loss = replica.model.loss(replica.module(inputs), targets)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        found.append(float(whole) / (2 if replica.pipeline is None else 1))
    return found


def main() -> None:
    dist.init_process_group("gloo")
    found = [losses_of(way) for way in WAYS]
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads can abort a process that ends while they run


if __name__ == "__main__":
    main()
