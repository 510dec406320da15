"""Runs a block and keeps its activations or, with checkpointing, recomputes them in the backward pass."""

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def run_block(block: nn.Module, x: Tensor, *, recompute: bool) -> Tensor:
    """Return `block(x)`. With `recompute`, only `x` is kept for the backward pass (non-reentrant checkpoint)."""
    if recompute:
        output: Tensor = checkpoint(block, x, use_reentrant=False)
        return output
    output = block(x)
    return output
