"""A healthy DDP loop on CPU ranks whose steps vary: each rank computes for a random time, from the same distribution.

    rankscope run script=benchmarks/noisy_loop.py world_size=2 device=cpu
    rankscope run script=benchmarks/noisy_loop.py world_size=2 device=cpu -- --late-rank 1 --late-ms 5

`benchmarks/healthy.py` runs it. It does not use rankscope.
"""

import argparse
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Train until all epochs are over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--noise-ms", type=float, default=2.0, help="mean of the exponential distribution")
    parser.add_argument("--late-rank", type=int, default=-1)
    parser.add_argument("--late-ms", type=float, default=0.0)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    noise, square = random.Random(rank), torch.randn(128, 128)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(64_000, 256), torch.randint(10, (64_000,))), batch_size=64)
    for inputs, labels in loader:
        late = options.late_ms if rank == options.late_rank else 0.0
        time.sleep(late * 1e-3)
        for _ in range(int(noise.expovariate(1 / options.noise_ms) * 10)):  # about 0.1 ms each
            square @ square
        loss = nn.functional.cross_entropy(ddp(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
