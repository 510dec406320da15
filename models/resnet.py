"""A residual CNN of bottleneck blocks with batch normalisation (ResNet v1.5: the 3x3 convolution has the stride)."""

import torch.nn.functional as F
from torch import Tensor, nn

from rankscope.conf.sections import ModelConfig
from rankscope.models.base import ReferenceModel, SampleSpec
from rankscope.models.checkpointing import run_block

EXPANSION = 4

# size: (blocks of each stage, width of the first stage, image side, classes)
SIZES: dict[str, tuple[tuple[int, ...], int, int, int]] = {
    "tiny": ((1, 1), 16, 32, 10),
    "small": ((2, 2, 2, 2), 64, 224, 1000),  # 14 M
    "medium": ((3, 4, 6, 3), 64, 224, 1000),  # ResNet-50, 26 M
    "large": ((3, 4, 23, 3), 128, 224, 1000),  # ResNet-101, twice as wide, 168 M
    "xl": ((3, 8, 36, 3), 256, 224, 1000),  # ResNet-152, four times as wide, 0.9 B
}


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution that keeps the size (except for the stride), with its batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a residual path around them."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.body = nn.Sequential(
            convolution(inputs, width, 1),
            nn.ReLU(),
            convolution(width, width, 3, stride),
            nn.ReLU(),
            convolution(width, outputs, 1),
        )
        same = inputs == outputs and stride == 1
        self.shortcut: nn.Module = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Transform (batch, channels, height, width)."""
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Maps images (batch, 3, side, side) to logits (batch, classes)."""

    def __init__(self, stages: tuple[int, ...], width: int, classes: int, *, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.stem = nn.Sequential(convolution(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.ModuleList()
        channels = width
        for stage, count in enumerate(stages):
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                self.blocks.append(Bottleneck(channels, width << stage, stride))
                channels = (width << stage) * EXPANSION
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = run_block(block, x, recompute=self.recompute)
        output: Tensor = self.head(x.mean(dim=(2, 3)))
        return output


def forward_flops(stages: tuple[int, ...], width: int, side: int, classes: int) -> int:
    """Return the sum of 2 k^2 C_in C_out H_out W_out over the convolutions, plus 2 C_in C_out for the last layer."""
    side = _halved(side)  # the stem strides by 2
    total = 2 * 7**2 * 3 * width * side**2
    side = _halved(side)  # the pooling strides by 2 too
    channels = width
    for stage, count in enumerate(stages):
        inner, outputs = width << stage, (width << stage) * EXPANSION
        for index in range(count):
            before = side
            side = _halved(side) if stage > 0 and index == 0 else side
            total += 2 * channels * inner * before**2  # 1x1, before the stride
            total += 2 * 9 * inner * inner * side**2
            total += 2 * inner * outputs * side**2
            if channels != outputs or side != before:
                total += 2 * channels * outputs * side**2  # the shortcut's own convolution
            channels = outputs
    return total + 2 * channels * classes


def _halved(side: int) -> int:
    return (side + 1) // 2  # odd kernel, padding k // 2, stride 2


def build(config: ModelConfig) -> ReferenceModel:
    """Build the model of `config.size` on torch's current default device."""
    stages, width, side, classes = SIZES[config.size]
    return ReferenceModel(
        module=ResNet(stages, width, classes, recompute=config.activation_checkpointing),
        sample=SampleSpec(kind="image", shape=(3, side, side), classes=classes),
        loss=F.cross_entropy,
        flops_per_sample=3 * forward_flops(stages, width, side, classes),
    )
