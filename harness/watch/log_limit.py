"""Rate-limits log lines: when events come too often to be informative, they go to events.jsonl only."""

from collections import deque

MOST, STEPS = 10, 1_000  # at most this many events are logged within this many steps


class LogLimit:
    """Stops logging at more than `MOST` events in `STEPS` steps, and starts again at half as many."""

    def __init__(self) -> None:
        self._steps: deque[int] = deque()
        self._silent = False

    def lines(self, step: int, text: str) -> list[str]:
        """Return the log lines for an event at a step: its text, or once the reason for the silence, or nothing."""
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
            f"step {step}: more than {MOST} events in {STEPS:,} steps: the speed of this job is unsteady; until that "
            "ends, events are written to events.jsonl only"
        ]
