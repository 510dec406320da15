"""Chooses the size of the reference model if `model.size=auto`, so that a step fills the device.

A GPU that gets the tiny model waits for its host, and the first answer would be that. So a GPU gets the largest size
that fits, and a step takes at least 30 ms on an H200 (docs/validation.md, "Default size of the model").
"""

from collections.abc import Sequence

import msgspec

from rankscope.conf import RunConfig
from rankscope.launch.system.torch_facts import TorchFacts

GIB = 2**30
# model: its sizes above tiny, the largest first, with the GiB that training in fp32 needs without a batch and for each
# sample. Peaks of torch's allocator on an H200, batches of 8 and 16.
_NEEDS: dict[str, dict[str, tuple[float, float]]] = {
    "gpt": {"large": (4.6, 2.1), "medium": (1.5, 1.2), "small": (0.5, 0.4)},
    "resnet": {"large": (2.5, 0.25), "medium": (0.5, 0.1), "small": (0.3, 0.06)},
    "mlp": {"xl": (19.0, 0.01), "large": (7.7, 0.01), "medium": (2.0, 0.01)},
}
_SLOW_IN_FP32 = {("gpt", "large"), ("gpt", "medium")}  # 0.42 and 0.16 s a step on an H200, small takes 0.03 s
_USABLE = 0.8  # of the device's memory; DDP's buckets and NCCL need the rest
_UNKNOWN_GIB = 16.0  # memory of the GPU of a job that is submitted from here


def with_size(config: RunConfig, facts: TorchFacts | None, others: Sequence[RunConfig] = ()) -> RunConfig:
    """Return `config` with a named size instead of `auto`: the smallest that it and `others` of its model would get.

    The points of a sweep must train the same model, whatever their batch and precision. `facts` are this machine's;
    None if the run is submitted to another one.
    """
    if config.model.size != "auto" or config.script is not None:
        return config
    peers = [config, *(other for other in others if other.model.name == config.model.name)]
    order = ["tiny", *reversed(_NEEDS.get(config.model.name, {}))]
    size = min((_size(peer, facts) for peer in peers), key=order.index)
    return msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, size=size))


def _size(config: RunConfig, facts: TorchFacts | None) -> str:
    memory_gib = _memory_gib(config, facts)
    if memory_gib is None:
        return "tiny"
    name, fp32 = config.model.name, config.precision.name == "fp32"
    for size, (model_gib, sample_gib) in _NEEDS.get(name, {}).items():
        needed = model_gib + sample_gib * config.rank_batch_size
        if needed <= _USABLE * memory_gib and not (fp32 and (name, size) in _SLOW_IN_FP32):
            return size
    return "tiny"


def _memory_gib(config: RunConfig, facts: TorchFacts | None) -> float | None:
    """Return the memory of the smallest GPU that the ranks may get; None if they run on CPUs."""
    if config.device == "cpu" or (facts is None and config.device != "cuda"):
        return None
    if facts is None:
        return _UNKNOWN_GIB
    return min((device["memory_bytes"] / GIB for device in facts.devices), default=None)
