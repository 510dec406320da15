"""A loop with Hugging Face Accelerate and gradient accumulation, marked for rankscope in the lines with `# rankscope`.

pip install 'rankscope[train,hf]'
torchrun --nproc-per-node=2 examples/accelerate_loop.py                        # as usual
rankscope run script=examples/accelerate_loop.py world_size=2 steps=20         # recorded and analysed
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rankscope.harness.hf import AcceleratedMarker  # rankscope


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--accumulate", type=int, default=2)
    options = parser.parse_args()

    set_seed(0)
    cpu = not torch.cuda.is_available()  # explicit, because otherwise ranks without a GPU do not find each other
    accelerator = Accelerator(cpu=cpu, gradient_accumulation_steps=options.accumulate)
    width = options.width
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 10))
    centres = torch.randn(10, width)
    labels = torch.randint(10, (128 * options.batch_size * accelerator.num_processes,))
    dataset = TensorDataset(centres[labels] + torch.randn(len(labels), width), labels)
    loader = DataLoader(dataset, options.batch_size, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    marker = AcceleratedMarker(accelerator)  # rankscope
    for step, (inputs, targets) in enumerate(loader, 1):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        marker.step()  # rankscope
        if step == options.steps:
            break
    print(f"rank {accelerator.process_index}: loss {loss.item():.9g} after {step} batches")
    accelerator.end_training()


if __name__ == "__main__":
    main()
