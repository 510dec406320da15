"""Keeps what is wrong with one format away from the others and from the training.

`Guarded` drops a sink that fails, with one line. `Background` does so as well, and gives the sink its numbers in a
thread: a server that does not answer holds up nobody. What it cannot take in time is left out.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from rankscope.harness.record.describe import one_line
from rankscope.harness.watch.sinks.sink import Sink

log = logging.getLogger("rankscope.monitor")
_MOST = 256  # calls that wait for the thread
_CLOSE_S = 10.0  # how long the end of the training waits for the last numbers


class Guarded:
    """Passes everything on to a sink until it fails."""

    def __init__(self, name: str, sink: Sink) -> None:
        self._name = name
        self._sink: Sink | None = sink

    def steps(self, lines: list[dict[str, Any]]) -> None:
        self._call("steps", lines)

    def stats(self, stats: dict[str, Any]) -> None:
        self._call("stats", stats)

    def ranks(self, step: int, stats: list[dict[str, float]]) -> None:
        self._call("ranks", step, stats)

    def event(self, event: dict[str, Any], text: str) -> None:
        self._call("event", event, text)

    def close(self) -> None:
        self._call("close")

    def _call(self, method: str, *arguments: Any) -> None:
        if self._sink is None:
            return
        try:
            getattr(self._sink, method)(*arguments)
        except Exception as error:  # a boundary: whatever goes wrong here, the watch and the training go on
            self._sink = None
            _say(self._name, error)


class Background:
    """Opens a sink in a thread, and gives it there what all ranks came to. Single steps are not passed on."""

    def __init__(self, name: str, make: Callable[[], Sink]) -> None:
        self._name = name
        self._make = make
        self._calls: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(_MOST)
        self._left_out = 0
        self._closing = self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"rankscope-{name}", daemon=True)
        self._thread.start()

    def steps(self, lines: list[dict[str, Any]]) -> None:
        """Ignore single steps: the statistics of the window say enough."""

    def stats(self, stats: dict[str, Any]) -> None:
        self._later("stats", stats)

    def ranks(self, step: int, stats: list[dict[str, float]]) -> None:
        self._later("ranks", step, stats)

    def event(self, event: dict[str, Any], text: str) -> None:
        self._later("event", event, text)

    def close(self) -> None:
        """Let the thread write what waits for it, for a limited time."""
        self._closing = True
        try:
            self._calls.put(("close", ()), timeout=_CLOSE_S)
        except queue.Full:
            self._left_out += 1
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            log.warning("rankscope: %s did not take the last numbers within %.0f s", self._name, _CLOSE_S)
        elif self._left_out:
            log.warning("rankscope: %s was too slow for %d of the numbers: left out", self._name, self._left_out)

    def _later(self, method: str, *arguments: Any) -> None:
        if self._failed:
            return
        try:
            self._calls.put_nowait((method, arguments))
        except queue.Full:
            self._left_out += 1

    def _work(self) -> None:
        taken = 0
        try:
            sink = self._make()
            method = ""
            while method != "close":
                method, arguments = self._calls.get()
                getattr(sink, method)(*arguments)
                taken += 1
        except (Exception, KeyboardInterrupt) as error:  # as in `Guarded`; a library may raise the latter in a thread
            self._failed = True
            # A sink that has worked may fail at the end because its library ended the run with the process: no news.
            # One that has taken nothing until then, as after a short training, has lost every number.
            if not (taken and self._closing):
                _say(self._name, error)


def _say(name: str, error: BaseException) -> None:
    log.warning("rankscope: %s gets no more numbers: %s", name, one_line(error))
