"""PyTorch Lightning: a callback that ends a step after each optimizer step (`rankscope[lightning]`).

    trainer = Trainer(callbacks=[StepCallback()], ...)                  # under `rankscope run script=...`
    trainer = Trainer(callbacks=[StepCallback(Monitor("watch"))], ...)  # a long run, watched

The parts of a step are found from torch's own calls. When everything is recorded, the training is asked to stop.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from rankscope.harness.observe.instrument import Marker
from rankscope.harness.recorder import Recorder

if TYPE_CHECKING:
    Callback: Any = object
else:  # the package has two names, and a trainer accepts callbacks of its own package only
    _NAMES = ("lightning.pytorch", "pytorch_lightning")
    _loaded = [name for name in _NAMES if name in sys.modules] + [
        name for name in _NAMES if importlib.util.find_spec(name.partition(".")[0])
    ]
    Callback = importlib.import_module((_loaded or ["pytorch_lightning"])[0]).Callback


class StepCallback(Callback):  # type: ignore[misc]
    """Marks the steps of `trainer.fit` for a `Recorder` (the default) or a `Monitor`."""

    def __init__(self, marker: Marker | None = None) -> None:
        self._marker = Recorder() if marker is None else marker
        self._steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start from the number of steps in a checkpoint."""
        self._steps = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a step, unless gradients are still accumulated."""
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        try:
            self._marker.step()
        except SystemExit:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._marker.close()
