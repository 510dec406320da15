"""The settings of a `Monitor`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rankscope.harness.observe.marks import Source
from rankscope.harness.watch.event import Event


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings, as the arguments of `Monitor`; `alpha` is the probability of a false alarm per judgement."""

    parent: Path
    every: int
    window: int
    warmup: int
    alpha: float
    least_change: float
    trace_steps: int
    max_windows: int
    part_steps: int
    tensorboard: bool
    prometheus_port: int | None
    wandb: bool | str
    mlflow: bool | str
    steps_from: Source
    on_event: Callable[[Event], None] | None
