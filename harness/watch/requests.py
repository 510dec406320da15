"""Requests from outside for a window: a file in the folder of the watch, which rank 0 takes.

Nothing listens on a port. Rank 0 looks for the file once a block, and passes the number of steps on with that block, so
that all ranks open the window at the same step.
"""

import json
from typing import Any

from rankscope.conf.monitor_dir import MOST_CAPTURED, MonitorDir


class Requests:
    """The requests for windows of one watch. Only the rank that `takes` them looks for files."""

    def __init__(self, folder: MonitorDir, *, takes: bool) -> None:
        self._path = folder.request if takes else None
        self._ids: list[str] = []  # of the requests that were passed on and have no window yet

    def take(self) -> int:
        """Return how many steps are asked for, and remove the request; 0 if there is none."""
        if self._path is None or not self._path.is_file():
            return 0
        try:
            found: Any = json.loads(self._path.read_text(encoding="utf-8"))
            steps, name = int(found["steps"]), str(found["id"])
        except (OSError, ValueError, KeyError, TypeError):
            steps, name = 0, ""
        self._path.unlink(missing_ok=True)
        if not 1 <= steps <= MOST_CAPTURED:
            return 0
        self._ids.append(name)
        return steps

    def opened(self) -> str | None:
        """Return the request that the next window answers; None on other ranks."""
        return self._ids.pop(0) if self._ids else None
