"""How a process of a script ends: the exit status and the words that the interpreter would give an exception."""

import atexit
import logging
import os
import sys
import threading
from types import TracebackType
from typing import Any, NoReturn


def status_of(error: BaseException | None) -> int:
    """Return the exit status for what a script raised, and print it as the interpreter would."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, own_part(error.__traceback__))
        return 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def own_part(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the script's first frame on, without those of rankscope that called it."""
    found = trace
    while found is not None and _is_ours(found.tb_frame.f_code.co_filename):
        found = found.tb_next
    return found or trace


def _is_ours(path: str) -> bool:
    return path.startswith(_FOLDER) or path.startswith("<frozen ") or path.endswith(_RECORD)


_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_RECORD = os.path.join("elastic", "multiprocessing", "errors", "__init__.py")


def leave(status: int) -> NoReturn:
    """End this process after its exit handlers have run, but without destructors: these could wait for lost ranks."""
    internals: Any = threading
    internals._shutdown()  # waits for the script's own threads, as the interpreter does
    atexit._run_exitfuncs()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(status)
