"""Runs a block, keeping its activations or, with checkpointing, computing them again in the backward pass."""

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def run_block(block: nn.Module, x: Tensor, *, recompute: bool) -> Tensor:
    """Return `block(x)`; with `recompute` only `x` is kept for the backward pass (non-reentrant checkpoint)."""
    if recompute:
        output: Tensor = checkpoint(block, x, use_reentrant=False)
        return output
    output = block(x)
    return output
