"""The interface between a reference model and the harness: a module, the shape of its samples, a loss, and its counts.

FLOPs are model FLOPs: a multiply and an add are two, and forward plus backward is three times the forward. The
recomputation of activation checkpointing is not counted. Only matrix products, convolutions and attention count.
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
    """One model that can be moved to a device, wrapped and trained."""

    module: nn.Module
    sample: SampleSpec
    loss: Callable[[Tensor, Tensor], Tensor]
    flops_per_sample: int  # forward and backward of one sample

    @property
    def parameters(self) -> int:
        """The number of trainable parameters; shared ones count once."""
        return sum(parameter.numel() for parameter in self.module.parameters())
