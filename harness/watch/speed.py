"""Finds changes of the speed of a watched run (docs/monitor.md). In: step times (ns). Out: `Event`s."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from rankscope.harness.watch.event import Event
from rankscope.harness.watch.exact_tests import Values, u_statistic, u_threshold
from rankscope.harness.watch.late_rank import LATE, REFERENCE
from rankscope.harness.watch.swings import LONGEST, Swings

SPEED = 40  # steps whose speed is compared with `REFERENCE`; shorter disturbances are ignored
_KIND = "speed"  # of `Swings`


@dataclass(slots=True)
class _Change:
    """A time in which steps take longer than the reference (`sign` 1) or less (-1)."""

    sign: int
    since: int  # roughly: the median of the last steps changes when half of them have
    is_proven: bool = False


@dataclass(slots=True)
class _Carried:
    """A change that was found before a window, and goes on after it."""

    median: float  # of the last steps before the window, ns
    steps: int = 0  # since the window


@dataclass(slots=True)
class _Comparison:
    """The last steps compared with earlier ones: with the first, or if it `moves` with those just before."""

    moves: bool
    reference: Values | None = None
    change: _Change | None = None


class Speed:
    """Compares the last `SPEED` steps with those just before and with the first ones.

    A change is reported if a two-sided Mann-Whitney test, exact at `alpha` over both comparisons, finds one, the
    medians differ by `least` or more, and it is no swing. Later steps are compared with the new speed.
    """

    def __init__(self, alpha: float, least: float = LATE) -> None:
        self._threshold = u_threshold(SPEED, REFERENCE, alpha / 4)
        self._least = least
        self._swings = Swings()
        self._reported: tuple[float, int] | None = None  # the median before a reported change, and when it began
        self._last: deque[tuple[int, float]] = deque(maxlen=REFERENCE + SPEED + LONGEST)
        self._carried: _Carried | None = None
        self._comparisons: tuple[_Comparison, ...] = ()
        self._forget()

    def interrupt(self) -> None:
        """Begin anew, because a profiler came between, which may slow the job for good.

        A change that the test has found goes on if steps take about as long as before.
        """
        proven = tuple(item for item in self._comparisons if item.change is not None and item.change.is_proven)
        if not proven:
            self._forget()
        elif self._carried is None or self._carried.steps:
            self._comparisons = proven
            self._carried = _Carried(float(np.median([value for _, value in list(self._last)[-SPEED:]])))

    def _forget(self) -> None:
        self._carried = None
        self._last.clear()
        self._comparisons = (_Comparison(moves=True), _Comparison(moves=False))

    def add(self, first: int, step_ns: Values) -> list[Event]:
        """Add the times of the steps from `first` on (ns); returns the change, if there is one."""
        self._last.extend(enumerate(step_ns.tolist(), first))
        values = np.array([value for _, value in self._last])
        if len(values) < SPEED:
            return []
        recent = values[-SPEED:]
        if self._carried is not None and self._is_over(self._carried, recent, len(step_ns)):
            self._forget()
            return []
        if self._reported is not None and not self._sign(self._reported[0], float(np.median(recent))):
            self._ended(self._reported[1])  # the reported speed was no lasting one
            self._reported = None
        if len(values) < SPEED + REFERENCE:
            return []
        for comparison in self._comparisons:
            if comparison.reference is None or (comparison.moves and comparison.change is None):
                comparison.reference = values[-SPEED - REFERENCE : -SPEED]
            event = self._judge(comparison.reference, recent, comparison)
            if event is not None:
                self._forget()
                return [event]
        return []

    def _is_over(self, carried: _Carried, recent: Values, new: int) -> bool:
        """Return whether a change that was found before a window has ended, or steps take another time after it."""
        carried.steps += new
        changed = abs(float(np.median(recent)) - carried.median) >= self._least / 2 * carried.median
        ended = not any(item.change is not None and item.change.is_proven for item in self._comparisons)
        return ended or (changed and carried.steps >= SPEED)

    def _judge(self, reference: Values, recent: Values, comparison: _Comparison) -> Event | None:
        before, after = float(np.median(reference)), float(np.median(recent))
        sign, change = self._sign(before, after), comparison.change
        if change is not None and change.sign != sign:
            self._ended(change.since)
            change = None
        if change is None and sign:
            change = _Change(sign, self._last[-SPEED // 2][0])
        comparison.change = change
        if change is None:
            return None
        u = u_statistic(recent, reference)
        change.is_proven |= max(u, SPEED * REFERENCE - u) >= self._threshold
        if not change.is_proven or not self._is_news(change.since):
            return None
        self._reported = (before, change.since)
        return self._event(before, after, change)

    def _sign(self, before: float, after: float) -> int:
        """Return 1 if steps became longer, -1 if they became shorter, 0 if they changed by less than `least`."""
        return 0 if abs(after - before) < self._least * before else int(np.sign(after - before))

    def _is_news(self, since: int) -> bool:
        now = self._last[-1][0]
        return self._swings.is_news(_KIND, now, now + 1 - since)

    def _ended(self, since: int) -> None:
        last = self._last[-SPEED // 2][0]
        self._swings.ended(_KIND, last, last - since)

    def _event(self, before: float, after: float, change: _Change) -> Event:
        """Return the event, with the best split into two speeds as its date."""
        steps = [(step, value) for step, value in self._last if step >= change.since - REFERENCE]
        values = np.array([value for _, value in steps])
        nearer = np.abs(values - after) < np.abs(values - before)
        split = int(np.argmax(np.cumsum(np.where(nearer, 1, -1)[::-1])[::-1]))
        ms = [round(value * 1e-6, 4) for value in (before, float(np.median(values[split:])))]
        now, since = steps[-1][0], steps[split][0]
        return Event(event="speed_changed", step=now, since=since, before_ms=ms[0], after_ms=ms[1])
