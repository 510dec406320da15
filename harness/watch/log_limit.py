"""Keeps the log readable where a machine is unsteady: so many events that each says little are counted, not told.

Steps and the texts of events in; what is to be logged out. The files have every event all the same.
"""

from collections import deque

MOST, STEPS = 10, 1_000  # events told in so many steps


class Voice:
    """Tells events until there are more than `MOST` in `STEPS` steps, and again when there are half as many."""

    def __init__(self) -> None:
        self._steps: deque[int] = deque()
        self._silent = False

    def lines(self, step: int, text: str) -> list[str]:
        """Return what the log shall say of an event at a step: its text, once why there is no more, or nothing."""
        while self._steps and self._steps[0] <= step - STEPS:
            self._steps.popleft()
        self._steps.append(step)
        if self._silent and 2 * len(self._steps) <= MOST:
            self._silent = False
        if self._silent:
            return []
        if len(self._steps) <= MOST:
            return [text]
        self._silent = True
        return [
            f"step {step}: more than {MOST} events in {STEPS:,} steps: this job's speed wanders; until that ends they "
            "are written to events.jsonl only"
        ]
