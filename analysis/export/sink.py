"""`Sink`: the log of another tool that an export is written to. A new tool needs a class like it and a command."""

from collections.abc import Mapping
from typing import Protocol

Setting = bool | str | float | int


class Sink(Protocol):
    """One log: of a run, or of the figures of a complete sweep."""

    def scalar(self, name: str, rank: int, step: int, value: float) -> None: ...

    def image(self, name: str, step: int, png: bytes) -> None: ...

    def settings(self, settings: Mapping[str, Setting], results: Mapping[str, float]) -> None:
        """Take what the runs of a sweep differ in, and the results by which they are compared."""

    def close(self) -> None: ...
