"""A script that starts and stops the CUDA profiler by itself, as many training scripts do for Nsight Systems.

    rankscope run script=benchmarks/own_cuda_profiler.py world_size=2 'passes=[nsys]'

rankscope must record its own steps, not those that the script chooses (docs/own-script.md).
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, FIRST, LAST = 60, 3, 6
WIDTH = 1024


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH)).to(device)
    ddp = DistributedDataParallel(model, device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    for step in range(STEPS):
        if cuda and step == FIRST:
            torch.cuda.profiler.start()
        loss = ddp(torch.randn(64, WIDTH, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if cuda and step == LAST:
            torch.cuda.profiler.stop()
    print(f"rank {dist.get_rank()}: loss {loss.item():.9g} after {STEPS} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
