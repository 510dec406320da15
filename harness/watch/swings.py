"""Learns how long a job leaves its usual state and comes back, so that only what lasts longer is reported.

Tests of steps assume that no step is more likely than another to be the slow one. Hosts of shared machines do not keep
to that: their pace wanders for a hundred steps and more, so every test finds that something has changed, again and
again. What has come and gone before will go again. So something is news only if it lasts `TIMES` as long as anything of
its kind did before it ended, or `LONGEST` steps.
"""

TIMES, LONGEST = 3, 1000


class Swings:
    """The longest time that something lasted, by kind."""

    def __init__(self) -> None:
        self._longest: dict[str, int] = {}

    def ended(self, kind: str, steps: int) -> None:
        """Note that something has ended after a number of steps."""
        self._longest[kind] = max(self._longest.get(kind, 0), steps)

    def is_news(self, kind: str, steps: int) -> bool:
        """Return whether something that has lasted for a number of steps is more than a swing."""
        return steps >= min(TIMES * self._longest.get(kind, 0), LONGEST)
