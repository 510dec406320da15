"""Threads of our own that a script does not see in `threading`: it may count its threads, or wait for all of them."""

import _thread
import threading
from collections.abc import Callable


class HiddenThread:
    """A daemon thread that is not in `threading.enumerate()`."""

    def __init__(self, target: Callable[[], None]) -> None:
        self._target = target
        self._ended = threading.Event()
        self._started = False

    def start(self) -> None:
        self._started = True
        _thread.start_new_thread(self._run, ())

    def join(self) -> None:
        """Wait until the thread has ended; returns immediately if it was never started."""
        if self._started:
            self._ended.wait()

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self._ended.set()
