"""Counts of the reference models against torch's own counter, and against the published sizes."""

from typing import get_args

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from rankscope.conf.sections import ModelConfig, ModelName
from rankscope.models import ReferenceModel, build_model
from rankscope.models.gpt import SIZES as GPT_SIZES


def batch_of(model: ReferenceModel, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (size, *model.sample.shape)
    if model.sample.kind == "tokens":
        return torch.randint(model.sample.classes, shape), torch.randint(model.sample.classes, shape)
    return torch.randn(shape), torch.randint(model.sample.classes, (size,))


def counted_flops(model: ReferenceModel, size: int) -> int:
    """FLOPs of forward and backward as torch counts them: products, convolutions and attention; no lookups.

    The math kernel spells attention out as products; the fused ones count their own recomputation in the backward.
    """
    inputs, targets = batch_of(model, size)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.loss(model.module(inputs), targets).backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("name", get_args(ModelName))
def test_flops_agree_with_torchs_counter(name: str) -> None:
    model = build_model(ModelConfig(name=name))  # type: ignore[arg-type]
    # The first layer has no gradient of its input to compute, when its input is data: the rule of three counts it.
    first_layer = {
        "gpt": 0,  # an embedding, which counts for nothing
        "resnet": 2 * 7 * 7 * 3 * 16 * 16 * 16,  # 2 k^2 C_in C_out H W
        "mlp": 2 * 256 * 256,
    }[name]
    assert counted_flops(model, 2) == 2 * (model.flops_per_sample - first_layer)


def test_recomputed_activations_are_not_model_flops() -> None:
    plain, recomputing = (build_model(ModelConfig(activation_checkpointing=on)) for on in (False, True))
    assert recomputing.flops_per_sample == plain.flops_per_sample
    assert counted_flops(recomputing, 1) > counted_flops(plain, 1)


@pytest.mark.parametrize("name", get_args(ModelName))
def test_checkpointing_changes_no_gradient(name: str) -> None:
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(0)
        model = build_model(ModelConfig(name=name, activation_checkpointing=recompute))  # type: ignore[arg-type]
        inputs, targets = batch_of(model, 2)
        model.loss(model.module(inputs), targets).backward()
        gradients.append([parameter.grad for parameter in model.module.parameters()])
    for kept, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(kept, recomputed)


@pytest.mark.parametrize(
    ("name", "size", "millions"),
    [
        ("gpt", "xl", 1017),
        ("resnet", "xl", 928),
        ("mlp", "xl", 1015),
        ("resnet", "medium", 25.557),  # ResNet-50 as published: 25,557,032
        (
            "gpt",
            "medium",
            124.4,
        ),  # GPT-2 as published, biases and 47 tokens of its vocabulary apart
    ],
)
def test_sizes(name: str, size: str, millions: float) -> None:
    with torch.device("meta"):
        model = build_model(ModelConfig(name=name, size=size))  # type: ignore[arg-type]
    assert model.parameters / 1e6 == pytest.approx(millions, rel=0.01)


def test_gpt_parameters_by_hand() -> None:
    layers, width, _, context, vocabulary = GPT_SIZES["tiny"]
    norms = 2 * width * (2 * layers + 1)
    expected = vocabulary * width + context * width + 12 * layers * width**2 + norms
    assert build_model(ModelConfig()).parameters == expected
