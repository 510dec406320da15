"""Reference models by name and named size, from tiny (seconds on a CPU) to about one billion parameters.

`build_model` takes the `model` part of a configuration. It returns the module, and everything else that a training loop
and a throughput report need.
"""

import msgspec

from rankscope.conf.sections import ModelConfig
from rankscope.models import gpt, mlp, resnet
from rankscope.models.base import ReferenceModel, SampleSpec

_BUILDERS = {"gpt": gpt.build, "resnet": resnet.build, "mlp": mlp.build}


def build_model(config: ModelConfig) -> ReferenceModel:
    """Build the model on torch's current default device (use `with torch.device(...)` to choose it)."""
    if config.size == "auto":  # only the launcher knows the device
        config = msgspec.structs.replace(config, size="tiny")
    return _BUILDERS[config.name](config)


__all__ = ["ReferenceModel", "SampleSpec", "build_model"]
