"""`model.size=auto`: tiny without a GPU, the largest size that fits on one, and one size for all points of a sweep."""

from typing import Any

import pytest

from rankscope.conf import parse_config
from rankscope.launch.configure.model_size import GIB, with_size
from rankscope.launch.system.torch_facts import TorchFacts


def gpus(*gib: float) -> TorchFacts:
    return TorchFacts(version="2", devices=tuple({"memory_bytes": int(size * GIB)} for size in gib))


def size(facts: TorchFacts | None, **keys: Any) -> str:
    return with_size(parse_config(keys), facts).model.size


@pytest.mark.parametrize(
    ("facts", "keys", "expected"),
    [
        (gpus(), {}, "tiny"),
        (gpus(140), {"device": "cpu"}, "tiny"),
        (gpus(140), {}, "small"),  # fp32: medium would take 0.16 s a step
        (gpus(140), {"precision": {"name": "bf16"}, "batch_size": 16}, "large"),
        (gpus(80, 12), {"precision": {"name": "bf16"}}, "small"),  # the smaller GPU: medium needs 11 GiB of 12
        (gpus(24), {"batch_size": 64}, "tiny"),
        (gpus(24), {"precision": {"name": "bf16"}}, "medium"),
        (gpus(24), {"model": {"name": "resnet"}}, "large"),
        (gpus(40), {"model": {"name": "mlp"}}, "xl"),
        (gpus(140), {"model": {"name": "gpt", "size": "tiny"}}, "tiny"),
        (gpus(140), {"script": "train.py"}, "auto"),
        (None, {"device": "cuda"}, "small"),
        (None, {}, "tiny"),
    ],
)
def test_size(facts: TorchFacts | None, keys: dict[str, Any], expected: str) -> None:
    assert size(facts, **keys) == expected


def test_points_of_a_sweep_train_the_same_model() -> None:
    points = [parse_config({"precision": {"name": name}, "batch_size": 8}) for name in ("fp32", "bf16")]
    assert [with_size(point, gpus(140), points).model.size for point in points] == ["small", "small"]
