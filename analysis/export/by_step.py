"""Collects the scalars of a log that takes all values of a step together, in order of the steps."""

from collections import defaultdict


class BySteps:
    """Values by step and name."""

    def __init__(self) -> None:
        self._rows: defaultdict[int, dict[str, float]] = defaultdict(dict)

    def add(self, name: str, rank: int, step: int, value: float) -> None:
        self._rows[step][f"{name}/rank_{rank}"] = value

    def rows(self) -> list[tuple[int, dict[str, float]]]:
        """Return the steps in order, each with its values."""
        return sorted(self._rows.items())
