"""Runs a script unchanged, with a `Monitor` around its steps: `RANKSCOPE_LISTEN=FOLDER python -m rankscope.harness`.

The script runs as its own `__main__`. Only the times of its steps are recorded, until `rankscope capture` asks for a
window.
"""

import os

from rankscope.conf.contract import LISTEN, LISTEN_STEPS
from rankscope.harness.monitor import Monitor
from rankscope.harness.observe.marks import Source
from rankscope.harness.script import endings
from rankscope.harness.script.main_module import execute

_ON = ("1", "true", "yes")
_SOURCES: dict[str, Source] = {"optimizer": "optimizer", "loader": "loader"}


def run(arguments: list[str]) -> int:
    """Run SCRIPT with its arguments; returns its exit status."""
    folder, source = os.environ[LISTEN], os.environ.get(LISTEN_STEPS, "optimizer")
    monitor = Monitor("runs" if folder.lower() in _ON else folder, steps_from=_SOURCES.get(source, "optimizer"))
    error: BaseException | None = None
    try:
        execute(arguments[0], arguments[1:])
    except BaseException as raised:  # a boundary: the script ends as it would by itself
        error = raised
    status = endings.status_of(error)
    monitor.close()
    return status
