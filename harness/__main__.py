"""Entry of one rank: `python -m rankscope.harness RUN_DIR PASS`, started by torchrun."""

import logging
import os
import sys

from rankscope.harness.worker import main


def run(arguments: list[str]) -> int:
    """Run the rank; prints the traceback of an error and returns the exit status."""
    try:
        main(arguments)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:  # a boundary: os._exit below skips the interpreter's own traceback
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


if __name__ == "__main__":
    status = run(sys.argv[1:])
    if status:  # exit immediately: destructors of process groups could wait for ranks that are gone
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
