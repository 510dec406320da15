"""A wide multi-layer perceptron. It has little arithmetic per weight, so the all-reduce of its gradients dominates."""

import torch.nn.functional as F
from torch import Tensor, nn

from rankscope.conf.sections import ModelConfig
from rankscope.models.base import ReferenceModel, SampleSpec
from rankscope.models.checkpointing import run_block

# size: (hidden layers, width, classes); the number of features of a sample equals the width
SIZES: dict[str, tuple[int, int, int]] = {
    "tiny": (4, 256, 16),
    "small": (4, 2048, 1000),  # 19 M
    "medium": (6, 4096, 1000),  # 105 M
    "large": (6, 8192, 1000),  # 411 M
    "xl": (15, 8192, 1000),  # 1.0 B
}


class MLP(nn.Module):
    """Maps features (batch, width) to logits (batch, classes)."""

    def __init__(self, layers: int, width: int, classes: int, *, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = run_block(block, x, recompute=self.recompute)
        output: Tensor = self.head(x)
        return output


def flops_per_sample(layers: int, width: int, classes: int) -> int:
    """Return 3 x forward, which is 2 FLOPs per weight: 6 (L w^2 + w C)."""
    return 6 * (layers * width**2 + width * classes)


def build(config: ModelConfig) -> ReferenceModel:
    """Build the model of `config.size` on torch's current default device."""
    layers, width, classes = SIZES[config.size]
    return ReferenceModel(
        module=MLP(layers, width, classes, recompute=config.activation_checkpointing),
        sample=SampleSpec(kind="features", shape=(width,), classes=classes),
        loss=F.cross_entropy,
        flops_per_sample=flops_per_sample(layers, width, classes),
    )
