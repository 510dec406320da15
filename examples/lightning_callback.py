"""PyTorch Lightning under DDP, with rankscope's callback in the lines with `# rankscope`.

pip install 'rankscope[train,lightning]'
torchrun --nproc-per-node=2 examples/lightning_callback.py                        # as usual
rankscope run script=examples/lightning_callback.py world_size=2 steps=20         # recorded and analysed
"""

import argparse
import logging
import os
import warnings

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from rankscope.harness.lightning import StepCallback  # rankscope


class Classifier(pl.LightningModule):
    """A network of two layers that classifies points around ten centres."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 10))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.net(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--accumulate", type=int, default=1)
    options = parser.parse_args()

    pl.seed_everything(0, verbose=False)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    centres = torch.randn(10, options.width)
    labels = torch.randint(10, (16384,))
    dataset = TensorDataset(centres[labels] + torch.randn(len(labels), options.width), labels)
    trainer = pl.Trainer(
        accelerator="auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        strategy="ddp",
        max_steps=options.steps,
        accumulate_grad_batches=options.accumulate,
        callbacks=[StepCallback()],  # rankscope
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier(options.width)
    trainer.fit(model, DataLoader(dataset, options.batch_size, shuffle=True))
    total = sum(parameter.detach().double().sum().item() for parameter in model.parameters())
    print(f"rank {trainer.global_rank}: {trainer.global_step} steps, sum of parameters {total:.12g}")
    if dist.is_initialized():  # Lightning leaves it, and gloo's threads can abort a process that exits with it
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
