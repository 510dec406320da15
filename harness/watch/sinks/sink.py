"""`Sink`: a place that the numbers of a watched run go to while it runs."""

from typing import Any, Protocol


class Sink(Protocol):
    """What every format is given. It may ignore what it cannot show."""

    def steps(self, lines: list[dict[str, Any]]) -> None:
        """Take steps that the device has completed: dicts as `logs.line_of` makes them."""

    def stats(self, stats: dict[str, Any]) -> None:
        """Take the statistics of a rolling window, up to step `stats["step"]`."""

    def ranks(self, step: int, stats: list[dict[str, float]]) -> None:
        """Take the statistics of all ranks up to `step`, by rank. Only rank 0 is given them, if a sink needs them."""

    def event(self, event: dict[str, Any], text: str) -> None:
        """Take an event. Every rank has the same ones."""

    def close(self) -> None:
        """Write what is left."""
