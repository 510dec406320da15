"""One rank's work: reads `config.yaml` of a run folder, runs its job, writes the files of its rank.

torchrun starts it as `python -m rankscope.harness RUN_DIR PASS`; docs/run-folder.md says what it writes. For your own
training script: `Recorder` (docs/own-script.md) and `Monitor` (docs/monitor.md).
"""

from typing import TYPE_CHECKING, Any

from rankscope.harness.recorder import Recorder

if TYPE_CHECKING:
    from rankscope.harness.monitor import Monitor

__all__ = ["Monitor", "Recorder"]


def __getattr__(name: str) -> Any:
    """Load the Monitor when it is asked for: a Recorder alone needs none of it."""
    if name == "Monitor":
        from rankscope.harness.monitor import Monitor

        return Monitor
    raise AttributeError(name)
