"""A decoder-only transformer: learned positions, pre-norm blocks, causal attention, GELU MLP of four times the width.

The output matrix is tied to the token embedding, as in GPT-2. Only the norms have biases.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankscope.conf.sections import ModelConfig
from rankscope.models.base import ReferenceModel, SampleSpec
from rankscope.models.checkpointing import run_block

# size: (layers, width, heads, context, vocabulary)
SIZES: dict[str, tuple[int, int, int, int, int]] = {
    "tiny": (2, 128, 4, 64, 512),
    "small": (6, 512, 8, 512, 50304),  # 45 M
    "medium": (12, 768, 12, 1024, 50304),  # 125 M
    "large": (24, 1024, 16, 1024, 50304),  # 355 M
    "xl": (24, 1792, 14, 1024, 50304),  # 1.0 B
}


class Attention(nn.Module):
    """Causal self-attention of `heads` heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads  # of a head; a tensor-parallel rank has only some of the heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply attention to (batch, time, width)."""
        batch, time, _ = x.shape
        q, k, v = self.qkv(x).view(batch, time, -1, 3, self.size).permute(3, 0, 2, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        output: Tensor = self.out(y.transpose(1, 2).reshape(batch, time, -1))
        return output


class Block(nn.Module):
    """Attention and MLP, each with a norm before it and a residual path around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Transform (batch, time, width)."""
        x = x + self.attention(self.norm1(x))
        output: Tensor = x + self.mlp(self.norm2(x))
        return output


class GPT(nn.Module):
    """Maps token ids (batch, time) to logits (batch, time, vocabulary)."""

    def __init__(self, layers: int, width: int, heads: int, context: int, vocabulary: int, *, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.empty(context, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next token at every position."""
        x = self.tokens(ids) + self.positions[: ids.shape[1]]
        for block in self.blocks:
            x = run_block(block, x, recompute=self.recompute)
        return F.linear(self.norm(x), self.tokens.weight)


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over all tokens."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def flops_per_sample(layers: int, width: int, context: int, vocabulary: int) -> int:
    """Return 6 N T + 12 L d T^2, where N = 12 L d^2 + d V are the weights in matrix products (token look-up has none).

    A sample is one sequence of T tokens. Attention is counted as if it were not causal, the usual convention for MFU.
    """
    weights = 12 * layers * width**2 + width * vocabulary
    return 6 * weights * context + 12 * layers * width * context**2


def build(config: ModelConfig) -> ReferenceModel:
    """Build the model of `config.size` on torch's current default device."""
    layers, width, heads, context, vocabulary = SIZES[config.size]
    return ReferenceModel(
        module=GPT(layers, width, heads, context, vocabulary, recompute=config.activation_checkpointing),
        sample=SampleSpec(kind="tokens", shape=(context,), classes=vocabulary),
        loss=loss,
        flops_per_sample=flops_per_sample(layers, width, context, vocabulary),
    )
