"""Hugging Face Trainer on a tiny random GPT-2, with rankscope's callback in the lines with `# rankscope`.

pip install 'rankscope[train,hf]'
torchrun --nproc-per-node=2 examples/hf_trainer.py                        # as usual; downloads nothing
rankscope run script=examples/hf_trainer.py world_size=2 steps=20         # recorded and analysed
"""

import argparse
import tempfile

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from rankscope.harness.hf import StepCallback  # rankscope


class Tokens(Dataset[dict[str, Tensor]]):
    """Random tokens that repeat, so that the model can learn something."""

    def __init__(self, samples: int, length: int, vocabulary: int) -> None:
        generator = torch.Generator().manual_seed(0)
        half = torch.randint(vocabulary, (samples, length // 2), generator=generator)
        self.tokens = torch.cat([half, half], dim=1)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--accumulate", type=int, default=1)
    options = parser.parse_args()

    set_seed(0)
    config = GPT2Config(
        vocab_size=512,
        n_positions=options.length,
        n_embd=options.width,
        n_layer=options.layers,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=options.steps,
            use_cpu=not torch.cuda.is_available(),  # otherwise ranks without a GPU do not find each other
            per_device_train_batch_size=options.batch_size,
            gradient_accumulation_steps=options.accumulate,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=0,
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=Tokens(4096, options.length, config.vocab_size),
            callbacks=[StepCallback()],  # rankscope
        )
        trainer.train()
        total = sum(parameter.detach().double().sum().item() for parameter in model.parameters())
        print(f"rank {arguments.process_index}: {trainer.state.global_step} steps, sum of parameters {total:.12g}")
    if dist.is_initialized():  # the Trainer leaves it, and gloo's threads can abort a process that exits with it
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
