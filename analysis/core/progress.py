"""Progress of work that takes longer than a second: a bar over ranks, or the current step. Only on a terminal."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_AFTER = 1.0  # seconds; shorter work shows nothing


class Progress:
    """Counts ranks and bytes, and shows them on stderr if `shown` is set and stderr is a terminal."""

    def __init__(self, *, shown: bool = False) -> None:
        self._shown = shown and sys.stderr.isatty()
        self._bar: Bar | None = None
        self._started = time.monotonic()
        self._ranks = self._all_ranks = self._bytes = self._all_bytes = 0

    def begin(self, ranks: int, size: int) -> None:
        """Set the amount of work: ranks, and bytes of JSON."""
        self._started = time.monotonic()
        self._ranks, self._all_ranks, self._bytes, self._all_bytes = 0, ranks, 0, size

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def advance(self, size: int) -> None:
        """Count one more rank, of `size` bytes."""
        self._ranks += 1
        self._bytes += size
        elapsed = time.monotonic() - self._started
        if not self._shown or elapsed < _AFTER or self._ranks == self._all_ranks:
            return
        if self._bar is None:
            self._bar = self._make()
        speed = f"{self._ranks} of {self._all_ranks} ranks, {self._bytes / elapsed / 1e6:.0f} MB/s"
        self._bar.update(self._bar.task_ids[0], completed=self._bytes, description=speed)
        self._bar.refresh()

    def _make(self) -> "Bar":
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        # Refreshed from this thread: a refresh thread would make forking unsafe.
        bar = Bar(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
        bar.add_task("", total=self._all_bytes)
        bar.start()
        return bar


class Steps:
    """Shows the current step on stderr if the work takes longer than a second, and erases it at the end."""

    def __init__(self, *, shown: bool = True) -> None:
        self._shown = shown and sys.stderr.isatty()
        self._started = time.monotonic()
        self._written = 0

    def __enter__(self) -> "Steps":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._say("")

    def next(self, what: str) -> None:
        """Set the name of the current step."""
        if time.monotonic() - self._started >= _AFTER:
            self._say(f"{what} ...")

    def _say(self, text: str) -> None:
        if self._shown and (text or self._written):
            sys.stderr.write("\r" + text.ljust(self._written) + ("" if text else "\r"))
            sys.stderr.flush()
            self._written = len(text)
