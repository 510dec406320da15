"""The work of one rank: reads `config.yaml` of a run folder, runs the job, writes the files of the rank.

torchrun starts it as `python -m rankscope.harness RUN_DIR PASS`; docs/run-folder.md lists the files. For your own
training script there are `Recorder` (docs/own-script.md) and `Monitor` (docs/monitor.md).
"""

from typing import TYPE_CHECKING, Any

from rankscope.harness.recorder import Recorder

if TYPE_CHECKING:
    from rankscope.harness.monitor import Monitor

__all__ = ["Monitor", "Recorder"]


def __getattr__(name: str) -> Any:
    """Import the Monitor when it is first used, because a Recorder does not need it."""
    if name == "Monitor":
        from rankscope.harness.monitor import Monitor

        return Monitor
    raise AttributeError(name)
