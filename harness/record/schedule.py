"""The steps of a pass: configuration in, the phase of each step out."""

from rankscope.conf.contract import TORCH_PASSES, Phase
from rankscope.conf.schema import RunConfig


def phases(config: RunConfig, pass_name: str) -> list[Phase]:
    """Return the phase of each step: warmup and measured (plain), or wait, warmup and active (the others)."""
    if pass_name == "plain":
        return [*_repeat("warmup", config.warmup_steps), *_repeat("measured", config.steps)]
    profile = config.profile
    cycle = [
        *_repeat("wait", profile.wait),
        *_repeat("warmup", profile.warmup),
        *_repeat("active", profile.active),
    ]
    return cycle * (profile.repeat if pass_name in TORCH_PASSES else 1)  # nsys captures one window only


def _repeat(phase: Phase, count: int) -> list[Phase]:
    return [phase] * count
