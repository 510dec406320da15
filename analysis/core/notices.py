"""What can be wrong with input: `Notice`s that travel with the results, and `AnalysisError` when there are none.

A notice names the file, says what is wrong and what was done about it. Its `level` decides the outcome: `info`
nothing to worry about; `warning` numbers are valid; `partial` some rank or step is missing; `error` the ranks cannot
be told apart.
"""

from typing import Any, Literal

import msgspec

Level = Literal["info", "warning", "partial", "error"]


class AnalysisError(Exception):
    """No numbers can be given; the message is one line: which file, what is wrong, what to do."""

    def __init__(self, message: str, notices: "list[Notice] | None" = None) -> None:
        super().__init__(" ".join(message.split()))  # names out of a file may hold anything
        self.notices = notices or []


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something repaired, excluded, missing or refused."""

    kind: str
    message: str
    level: Level = "warning"
    rank: int | None = None
    file: str | None = None
    details: dict[str, Any] = {}

    def as_dict(self) -> dict[str, Any]:
        """Return the notice as it stands in `summary.json`."""
        fields = {
            "kind": self.kind,
            "level": self.level,
            "rank": self.rank,
            "file": self.file,
            "message": self.message,
        }
        return fields | self.details


class UnreadableTraceError(Exception):
    """One file that gives no numbers; carries the notice that says so. The other ranks go on."""

    def __init__(self, notice: Notice) -> None:
        super().__init__(notice.message)
        self.notice = notice
