"""A plain PyTorch loop under DDP, with rankscope's Recorder in the lines with `# rankscope`.

torchrun --nproc-per-node=2 examples/own_loop.py                    # as usual: the Recorder does nothing
rankscope run script=examples/own_loop.py world_size=2              # recorded and analysed
rankscope run script=examples/own_loop.py world_size=2 -- --width 2048 --steps 200
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from rankscope.harness import Recorder  # rankscope


def data(samples: int, width: int) -> TensorDataset:
    """Return points around ten centres, which a model can learn to classify."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, width, generator=generator)
    labels = torch.randint(10, (samples,), generator=generator)
    return TensorDataset(centres[labels] + torch.randn(samples, width, generator=generator), labels)


def main() -> None:
    """Train a classifier and print the loss of the last step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    options = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)

    torch.manual_seed(0)
    width = options.width
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 10)).to(device)
    ddp = DistributedDataParallel(model, device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    dataset = data(16384, width)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset, seed=0)
    loader = DataLoader(dataset, options.batch_size, sampler=sampler, pin_memory=cuda, drop_last=True)

    recorder = Recorder()  # rankscope
    step, epoch = 0, 0
    while step < options.steps:
        sampler.set_epoch(epoch)
        for inputs, labels in recorder.loader(loader):  # rankscope
            with recorder.h2d:  # rankscope
                inputs, labels = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with recorder.forward:  # rankscope
                loss = nn.functional.cross_entropy(ddp(inputs), labels)
            with recorder.backward:  # rankscope
                loss.backward()
            with recorder.optimizer:  # rankscope
                optimizer.step()
                optimizer.zero_grad()
            recorder.step()  # rankscope
            step += 1
            if step == options.steps:
                break
        epoch += 1
    print(f"rank {dist.get_rank()}: loss {loss.item():.9g} after {step} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
