"""The work of a `Monitor` on one rank: receives the steps, and keeps its own errors away from the training."""

import atexit
import logging
from collections.abc import Callable
from contextlib import suppress

from rankscope.conf.monitor_dir import MonitorDir
from rankscope.harness.observe.marks import Source
from rankscope.harness.observe.observer import Observer
from rankscope.harness.record.describe import one_line
from rankscope.harness.watch.event import Event
from rankscope.harness.watch.exchange import RankGone
from rankscope.harness.watch.options import Options
from rankscope.harness.watch.session import Session

log = logging.getLogger("rankscope.monitor")


class Watch(Observer):
    """Starts a `Session` with the first step and ends it with the process, or at the first error."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.folder: MonitorDir | None = None
        self._options = options
        self._session: Session | None = None
        self._closed = False
        self.marks.install()

    def begin(self) -> None:
        if self._session is None and not self._closed:
            self._safely(self._begin)

    def mark(self, source: Source) -> None:
        if source != self._options.steps_from or self._closed:
            return
        self.marks.close()
        if self._session is None:
            self.begin()
        else:
            self._safely(self._end_step)

    def close(self) -> None:
        """Write what is left and stop listening."""
        if not self._closed:
            self._safely(self._finish)
            self._stop_listening()
        if self._session is not None:
            with suppress(RuntimeError):
                self._session.drain()
            self._session = None
        atexit.unregister(self.close)

    def _begin(self) -> None:
        session = self._session = Session(self._options, self._notice)
        self.folder = session.folder
        self.ranges = session.ranges
        atexit.register(self.close)
        self.take_samples()
        session.begin()

    def _end_step(self) -> None:
        if self._session is not None:
            self._session.end_step(self.take_samples())

    def _finish(self) -> None:
        if self._session is not None:
            self._session.finish()

    def _notice(self, event: Event) -> None:
        self.events.append(event)
        if self._options.on_event is not None:
            self._options.on_event(event)

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # a boundary: whatever goes wrong here, the training goes on
            log.warning("rankscope: the monitor of this rank stops: %s", one_line(error))
            if self._session is not None and not isinstance(error, RankGone):
                self._session.stop()
            self._stop_listening()

    def _stop_listening(self) -> None:
        """Detach from the loop. Gathers that are pending between the ranks stay until `close`."""
        self._closed = True
        self.ranges = None
        self.marks.remove()
