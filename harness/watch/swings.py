"""Learns how long a job leaves its usual state and comes back, so that only what lasts longer is reported.

Tests of steps assume that no step is more likely than another to be the slow one. Hosts of shared machines do not keep
to that: their pace wanders for a hundred steps and more, so every test finds that something has changed, again and
again. So something is news only if it has lasted `TIMES` as long as the longest earlier thing of its kind that has
ended in the last `REMEMBERED` steps, or `LONGEST` steps.
"""

TIMES, LONGEST, REMEMBERED = 3, 1000, 10_000


class Swings:
    """What has come and gone, by kind."""

    def __init__(self) -> None:
        self._ended: dict[str, list[tuple[int, int]]] = {}  # last step and number of steps, only what may count again

    def ended(self, kind: str, now: int, steps: int) -> None:
        """Note that something has ended at step `now` after a number of steps."""
        longer = [(end, lasted) for end, lasted in self._ended.get(kind, []) if lasted > steps]
        self._ended[kind] = [*longer, (now, steps)]

    def is_news(self, kind: str, now: int, steps: int) -> bool:
        """Return whether something that has lasted for a number of steps until `now` is more than a swing."""
        known = [lasted for end, lasted in self._ended.get(kind, []) if end >= now - REMEMBERED]
        return steps >= min(TIMES * max(known, default=0), LONGEST)
