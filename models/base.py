"""What every reference model offers to the harness: a module, the shape of its samples, a loss, and its counts.

FLOPs are model FLOPs: a multiply and an add are two; forward plus backward is three times the forward; what
activation checkpointing computes again is not counted. Only matrix products, convolutions and attention count.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class SampleSpec:
    """The shape of one sample: `shape` token ids, float features, or a float image (channels, height, width).

    The target is one class below `classes`: per token for tokens, per sample otherwise.
    """

    kind: Literal["tokens", "features", "image"]
    shape: tuple[int, ...]
    classes: int


@dataclass(frozen=True, kw_only=True)
class ReferenceModel:
    """One model, ready to be moved, wrapped and trained."""

    module: nn.Module
    sample: SampleSpec
    loss: Callable[[Tensor, Tensor], Tensor]
    flops_per_sample: int  # forward and backward of one sample

    @property
    def parameters(self) -> int:
        """Trainable numbers, each counted once."""
        return sum(parameter.numel() for parameter in self.module.parameters())
