"""Reads how long a thread waited for a core although it was ready to run, because other threads had its cores.

Source: the second number of Linux's `/proc/thread-self/schedstat`, ns in the run queue. Other systems do not have it.
"""

import os
import threading


class CoreWait:
    """Reads the time of the calling thread; a reading takes some microseconds."""

    def __init__(self, path: str = "/proc/thread-self/schedstat") -> None:
        self._path = path
        self._file: int | None = None
        self._thread: int | None = None  # an open file stays with the thread that opened it

    def read(self) -> int | None:
        """Return the ns for which the thread has waited since it began; None if the system does not say."""
        if self._thread != threading.get_ident():
            self._open()
        if self._file is None:
            return None
        try:
            return int(os.pread(self._file, 80, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return None

    def _open(self) -> None:
        self.close()
        self._thread = threading.get_ident()
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
        self._file = self._thread = None

    __del__ = close
