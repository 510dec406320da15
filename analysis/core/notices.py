"""Problems with the input: a `Notice` travels with the results, an `AnalysisError` means that there are no results.

A notice names the file, says what is wrong and what was done about it. Its `level` decides the outcome. `info`: no
reason to worry. `warning`: the numbers are valid. `partial`: a rank or step is missing. `error`: the ranks cannot be
distinguished.
"""

from typing import Any, Literal

import msgspec

Level = Literal["info", "warning", "partial", "error"]


class AnalysisError(Exception):
    """No numbers can be given. The message is one line: which file, what is wrong, what to do."""

    def __init__(self, message: str, notices: "list[Notice] | None" = None) -> None:
        super().__init__(" ".join(message.split()))  # names from a file may contain line breaks
        self.notices = notices or []


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was repaired, excluded, missing or refused."""

    kind: str
    message: str
    level: Level = "warning"
    rank: int | None = None
    file: str | None = None
    details: dict[str, Any] = {}

    def as_dict(self) -> dict[str, Any]:
        """Return the notice in the form that `summary.json` uses."""
        fields = {
            "kind": self.kind,
            "level": self.level,
            "rank": self.rank,
            "file": self.file,
            "message": self.message,
        }
        return fields | self.details


class UnreadableTraceError(Exception):
    """One file gives no numbers. Carries the notice that says why; the other ranks continue."""

    def __init__(self, notice: Notice) -> None:
        super().__init__(notice.message)
        self.notice = notice
