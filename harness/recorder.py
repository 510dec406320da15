"""`Recorder`: four lines in your training loop, which cost nothing unless rankscope has started the script.

recorder = Recorder()
for inputs, targets in recorder.loader(loader):
    with recorder.forward:
        loss = model(inputs, targets)
    ...
    recorder.step()
"""

import sys
from typing import TYPE_CHECKING

from rankscope.harness.observe.instrument import Instrument

if TYPE_CHECKING:
    from rankscope.harness.script.job import ScriptJob


class Recorder(Instrument):
    """Marks the steps of a training loop and their parts.

    If rankscope did not start the script, every call returns immediately. After the last recorded step, `step` ends the
    script as by `sys.exit(0)`, unless `run_on` is set.
    """

    def __init__(self) -> None:
        self._job = _job()
        if self._job is not None:
            self._job.has_recorder()
        super().__init__(self._job)

    @property
    def active(self) -> bool:
        """Whether anything is recorded."""
        return self._job is not None and not self._job.done


def _job() -> "ScriptJob | None":
    """Return the recorded job of this process, or None; the module is loaded only if rankscope started the script."""
    module = sys.modules.get("rankscope.harness.script.run")
    return None if module is None else module.current()
