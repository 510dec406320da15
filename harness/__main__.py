"""Entry of one rank: `python -m rankscope.harness RUN_DIR PASS`, started by torchrun.

With the variable RANKSCOPE_LISTEN it is the entry of a script that is only watched.
"""

import logging
import os
import sys
from pathlib import Path

from rankscope.conf import RunDir
from rankscope.conf.contract import LISTEN
from rankscope.harness.script import endings
from rankscope.harness.worker import main


def run(arguments: list[str]) -> int:
    """Run the rank; prints what ended it as the interpreter would, and returns the exit status.

    With RANKSCOPE_LISTEN, the arguments are a script and its own arguments: see `listen`.
    """
    if not arguments:
        sys.exit(f"{LISTEN}=FOLDER python -m rankscope.harness SCRIPT ...: watch a script; see docs/monitor.md")
    if LISTEN in os.environ and not RunDir(Path(arguments[0])).config.exists():
        from rankscope.harness import listen

        return listen.run(arguments)
    try:
        main(arguments)
    except BaseException as error:  # a boundary: os._exit below skips the interpreter's own traceback
        return endings.status_of(error)
    return 0


if __name__ == "__main__":
    status = run(sys.argv[1:])
    if status and sys.modules["__main__"].__dict__ is not globals():  # a script: its exit handlers are to run
        endings.leave(status)
    if status:  # exit immediately: destructors of process groups could wait for ranks that are gone
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
