"""Says how long a sweep takes: before it starts what it measures at least, and after each point what is left."""

import time
from collections.abc import Sequence

from rankscope.conf import RunConfig
from rankscope.launch.run.record import starts


def announcement(configs: Sequence[RunConfig]) -> str:
    """Return what a sweep of these points will do, and for how long at least. Starts of processes come on top."""
    started = sum(len(starts(config)) for config in configs)
    measured = sum(config.seconds * config.repeats for config in configs if "plain" in config.passes)
    points = "1 point" if len(configs) == 1 else f"{len(configs)} points"
    return (
        f"{points}, for which ranks are started {started} times. The plain passes alone take {duration(measured)} "
        "or more; what is left is said after each point"
    )


class Pace:
    """The points that were run so far and the time that they took."""

    def __init__(self, points: int) -> None:
        self._left, self._done = points, 0
        self._begun = time.monotonic()

    def ended(self) -> str:
        """Count a point that has ended; returns how long the points took, and about how long the others will."""
        self._left, self._done = self._left - 1, self._done + 1
        took = time.monotonic() - self._begun
        left = f"about {duration(took / self._done * self._left)} left" if self._left else "nothing left"
        return f"{duration(took)} so far, {left}"


def duration(seconds: float) -> str:
    """Return a time with the two units that matter: 45 s, 5 min 30 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h {whole % 3600 // 60} min"
