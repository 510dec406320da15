"""Hugging Face: a callback for `transformers.Trainer`, and a Recorder for loops with Accelerate (`rankscope[hf]`).

    Trainer(model, arguments, callbacks=[StepCallback()], ...)
    recorder = AcceleratedMarker(accelerator)             # and recorder.step() after every optimizer.step()

The parts of a step are found from torch's own calls. When everything is recorded, `Trainer` is asked to stop.
"""

from typing import TYPE_CHECKING, Any

from rankscope.harness.observe.instrument import Marker
from rankscope.harness.recorder import Recorder

if TYPE_CHECKING:
    TrainerCallback: Any = object
else:
    try:
        from transformers import TrainerCallback
    except ModuleNotFoundError:  # a loop with Accelerate needs no callback
        TrainerCallback = object


class StepCallback(TrainerCallback):  # type: ignore[misc]
    """Marks the optimizer steps of `Trainer.train` for a `Recorder` (the default) or a `Monitor`."""

    def __init__(self, marker: Marker | None = None) -> None:
        self._marker = Recorder() if marker is None else marker

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End a step: the gradients of all its batches are applied."""
        try:
            self._marker.step()
        except SystemExit:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._marker.close()


class AcceleratedMarker:
    """Ends a step when Accelerate has synchronised the gradients; micro-steps in between belong to it."""

    def __init__(self, accelerator: Any, marker: Marker | None = None) -> None:
        self._accelerator = accelerator
        self._marker = Recorder() if marker is None else marker

    def step(self) -> None:
        """End a step, unless gradients are still accumulated."""
        if self._accelerator.sync_gradients:
            self._marker.step()

    def close(self) -> None:
        self._marker.close()
