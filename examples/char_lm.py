"""A character-level language model on two GPUs or two CPU cores, as in a tutorial. It does not use rankscope.

torchrun --nproc-per-node=2 examples/char_lm.py
rankscope run script=examples/char_lm.py world_size=2
"""

import argparse
import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WORDS = "the of and a to in is was it for on as with at by from his her that this were which or be are not".split()


def make_text(length):
    rng = random.Random(1)
    text = ""
    while len(text) < length:
        text += rng.choice(WORDS) + (". " if rng.random() < 0.1 else " ")
    return text[:length]


class Characters(Dataset):
    """Every window of `block` characters, and the characters that follow."""

    def __init__(self, text, block):
        self.alphabet = sorted(set(text))
        index = {letter: number for number, letter in enumerate(self.alphabet)}
        self.data = torch.tensor([index[letter] for letter in text])
        self.block = block

    def __len__(self):
        return len(self.data) - self.block

    def __getitem__(self, i):
        return self.data[i : i + self.block], self.data[i + 1 : i + 1 + self.block]


class CharLM(nn.Module):
    def __init__(self, letters, block, width, layers):
        super().__init__()
        self.token = nn.Embedding(letters, width)
        self.position = nn.Parameter(torch.zeros(block, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, letters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(block))

    def forward(self, tokens):
        hidden = self.token(tokens) + self.position[: tokens.shape[1]]
        return self.head(self.blocks(hidden, mask=self.mask, is_causal=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--characters", type=int, default=6000)
    args = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    cuda = torch.cuda.is_available()
    device = torch.device(f"cuda:{local_rank}" if cuda else "cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")

    torch.manual_seed(1)
    dataset = Characters(make_text(args.characters), args.block)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, num_workers=args.workers, pin_memory=cuda)
    model = CharLM(len(dataset.alphabet), args.block, args.width, args.layers).to(device)
    ddp_model = DDP(model, device_ids=[local_rank] if cuda else None)
    optimizer = torch.optim.AdamW(ddp_model.parameters(), lr=3e-3)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            x, y = x.to(device), y.to(device)
            logits = ddp_model(x)
            loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.9g}", flush=True)
    print(f"rank {dist.get_rank()} last loss {loss.item():.9g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
