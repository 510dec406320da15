"""One rank's work: reads `config.yaml` of a run folder, runs its job, writes the files of its rank.

torchrun starts it as `python -m rankscope.harness RUN_DIR PASS`; docs/run-folder.md says what it writes. For your own
training script: `Recorder` (docs/own-script.md).
"""

from rankscope.harness.recorder import Recorder

__all__ = ["Recorder"]
