"""Judges a watched run: which rank is late and why, and whether the speed has changed.

In: the parts of every step and rank (`PARTS`, ns). Out: `Event`s. Every rank gets the same numbers, so every rank finds
the same events. docs/monitor.md has the definitions.
"""

from collections import deque
from typing import Any

import msgspec
import numpy as np

from rankscope.conf.chance import binomial_tail
from rankscope.harness.watch.exact_tests import Values, fisher, u_statistic, u_threshold

PARTS = ("step", "data", "copy", "forward", "backward", "optimizer", "backward compute")
CAUSES = ("data", "copy", "compute", "host")
LATE = 0.05  # share of the median step from which a rank counts as late
JUDGED, REFERENCE = 10, 100  # steps that are judged, and steps that they are compared with
SPEED = 40  # steps whose speed is compared with `REFERENCE`; shorter disturbances are ignored
_TWO_THIRDS = 2 / 3


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something found after step `step`; `since` is the first step that shows it."""

    event: str  # late_rank, recovered, speed_changed
    step: int
    since: int
    rank: int | None = None
    cause: str | None = None
    cause_share: dict[str, float] = {}
    lateness_ms: float | None = None
    before_ms: float | None = None
    after_ms: float | None = None

    def text(self) -> str:
        if self.event == "late_rank":
            return (
                f"step {self.step}: rank {self.rank} is late by {self.lateness_ms:.2f} ms a step since step "
                f"{self.since}, cause: {self.cause}"
            )
        if self.event == "recovered":
            return f"step {self.step}: rank {self.rank} is no longer late"
        assert self.before_ms is not None and self.after_ms is not None
        return (
            f"step {self.step}: a step takes {self.after_ms:.2f} ms instead of {self.before_ms:.2f} since about step "
            f"{self.since}"
        )

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in msgspec.to_builtins(self).items() if value not in (None, {})}


def own_parts(parts: Values) -> Values:
    """Return each rank's own time by cause (steps x ranks x `CAUSES`, ns) from its parts (steps x ranks x `PARTS`).

    Of the backward pass, only the time until the rank's own gradients are computed counts. The rest is waiting for the
    gradients of other ranks. Time outside of all ranges counts as waiting for data, up to the measured wait; the rest
    counts as host time.
    """
    step, data, copy, forward, backward, optimizer, backward_compute = np.moveaxis(parts, -1, 0)
    outside = np.maximum(step - copy - forward - backward - optimizer, 0)
    stalled = np.minimum(data, outside)
    return np.stack([stalled, copy, forward + backward_compute + optimizer, outside - stalled], axis=-1)


class LateRank:
    """Names a rank that is late in more than half of the last `JUDGED` steps, if that is significant.

    The lateness of a rank in a step is the sum of its own parts minus the median of the other ranks' parts. `alpha` is
    the probability of a false alarm in one judgement, if steps are exchangeable. A rank that was late from the start is
    named after `REFERENCE` steps, if equal ranks would hardly ever be late that often.
    """

    def __init__(self, ranks: int, alpha: float, late: float = LATE) -> None:
        self._ranks = ranks
        self._alpha = alpha / ranks
        self._late = late
        self._steps: deque[tuple[int, int, Values]] = deque(maxlen=JUDGED + REFERENCE)  # step, late rank or -1, excess
        self.named: int | None = None

    def add(self, first: int, parts: Values) -> list[Event]:
        """Add the steps from `first` on (steps x ranks x `PARTS`, ns); returns new events."""
        if self._ranks < 2:
            return []
        own = own_parts(parts)
        for index in range(len(parts)):
            self._steps.append((first + index, *self._late_in(parts[index], own[index])))
        return self._judge(first + len(parts) - 1)

    def reset(self) -> None:
        """Forget the steps so far, so that later steps are not compared with them."""
        self._steps.clear()

    def _late_in(self, parts: Values, own: Values) -> tuple[int, Values]:
        """Return the late rank of one step (-1 for none) and its excess by cause."""
        excess = np.stack([own[r] - np.median(np.delete(own, r, 0), axis=0) for r in range(self._ranks)])
        rank = int(excess.sum(axis=1).argmax())
        enough = excess[rank].sum() >= self._late * np.median(parts[:, 0])
        return (rank if enough else -1), excess[rank]

    def _judge(self, now: int) -> list[Event]:
        steps = list(self._steps)
        recent, before = steps[-JUDGED:], steps[:-JUDGED]
        if len(recent) < JUDGED:
            return []
        counts = {rank: sum(late == rank for _, late, _ in recent) for rank in range(self._ranks)}
        found: list[Event] = []
        if self.named is not None and counts[self.named] == 0:
            found.append(Event(event="recovered", step=now, since=recent[0][0], rank=self.named))
            self.named = None
        rank = max(counts, key=lambda item: counts[item])
        if rank == self.named or 2 * counts[rank] <= JUDGED:
            return found
        earlier = sum(late == rank for _, late, _ in before)
        anybody = sum(late >= 0 for _, late, _ in steps)
        changed = fisher(counts[rank], JUDGED, earlier, len(before)) <= self._alpha
        # Of equal ranks each is the late one in 1 / ranks of the steps in which one is late.
        chance = binomial_tail(earlier + counts[rank], anybody, 1 / self._ranks)
        all_along = (
            len(before) == REFERENCE and 2 * (earlier + counts[rank]) > REFERENCE + JUDGED and chance <= self._alpha
        )
        if changed or all_along:
            self.named = rank
            found.append(self._event(now, rank, steps if all_along and not changed else recent))
        return found

    def _event(self, now: int, rank: int, steps: list[tuple[int, int, Values]]) -> Event:
        late = [(step, excess) for step, name, excess in steps if name == rank]
        mean = np.mean([excess for _, excess in late], axis=0)
        total = float(mean.sum())
        share = {cause: round(float(part) / total, 3) for cause, part in zip(CAUSES, mean, strict=True)}
        cause = max(share, key=lambda item: share[item])
        return Event(
            event="late_rank",
            step=now,
            since=late[0][0],
            rank=rank,
            cause=cause if share[cause] >= _TWO_THIRDS else "mixed",
            cause_share=share,
            lateness_ms=round(total * 1e-6, 4),
        )


class Speed:
    """Finds a change of the step time: compares the last `SPEED` steps with those just before, and with the first ones.

    A change is reported if a two-sided Mann-Whitney test, exact at `alpha` over both comparisons, finds one and the
    medians differ by `least` or more. Later steps are compared with the new speed.
    """

    def __init__(self, alpha: float, least: float = LATE) -> None:
        self._threshold = u_threshold(SPEED, REFERENCE, alpha / 4)
        self._least = least
        self._first: list[float] = []
        self._last: deque[tuple[int, float]] = deque(maxlen=SPEED + REFERENCE)

    def reset(self) -> None:
        """Forget the steps so far, so that later steps are not compared with them."""
        self._first.clear()
        self._last.clear()

    def add(self, first: int, step_ns: Values) -> list[Event]:
        """Add the times of the steps from `first` on (ns); returns the change, if there is one."""
        for index, value in enumerate(step_ns.tolist()):
            self._last.append((first + index, value))
            if len(self._first) < REFERENCE:
                self._first.append(value)
        if len(self._last) < SPEED + REFERENCE:
            return []
        values = np.array([value for _, value in self._last])
        recent = values[REFERENCE:]
        for reference in (values[:REFERENCE], np.array(self._first)):
            before, after = float(np.median(reference)), float(np.median(recent))
            u = u_statistic(recent, reference)
            if abs(after / before - 1) < self._least or max(u, SPEED * REFERENCE - u) < self._threshold:
                continue
            nearer = np.abs(values - after) < np.abs(values - before)
            split = int(np.argmax(np.cumsum(np.where(nearer, 1, -1)[::-1])[::-1]))  # the best split into two speeds
            now, since = self._last[-1][0], self._last[split][0]
            ms = [round(value * 1e-6, 4) for value in (before, float(np.median(values[split:])))]
            self.reset()
            return [Event(event="speed_changed", step=now, since=since, before_ms=ms[0], after_ms=ms[1])]
        return []
