"""Judges a watched run: which rank is late and why, and whether the speed has changed.

In: the parts of every step and rank (`PARTS`, ns). Out: `Event`s. Every rank gets the same numbers, so every rank finds
the same events. docs/monitor.md has the definitions.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec
import numpy as np

from rankscope.conf.chance import binomial_tail, independent_share
from rankscope.harness.watch.exact_tests import Values, fisher, u_statistic, u_threshold
from rankscope.harness.watch.parts import CAUSES, excesses, shares
from rankscope.harness.watch.swings import LONGEST, Swings

LATE = 0.05  # share of the median step from which a rank counts as late
JUDGED, REFERENCE = 10, 100  # steps that are judged, and steps that they are compared with
_SPEED = "speed"  # the kind of a change of speed, for `Swings`
SPEED = 40  # steps whose speed is compared with `REFERENCE`; shorter disturbances are ignored


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


_Judged = tuple[int, int, Values]  # a step, its late rank or -1, and that rank's excess (`CAUSES`, ns)


@dataclass(slots=True)
class _Spell:
    """A time in which one rank is late in most steps."""

    rank: int
    since: int
    late: int = 0  # steps
    total: Values = field(default_factory=lambda: np.zeros(len(CAUSES)))  # of the excess, ns
    is_proven: bool = False  # whether a test has found that it is no chance

    @classmethod
    def of(cls, rank: int, steps: Sequence[_Judged]) -> Self:
        its = [(step, excess) for step, late, excess in steps if late == rank]
        return cls(rank, its[0][0], len(its), np.sum([excess for _, excess in its], axis=0))

    def add(self, excess: Values) -> None:
        self.late += 1
        self.total = self.total + excess

    def event(self, now: int) -> Event:
        cause, share = shares(self.total)
        return Event(
            event="late_rank",
            step=now,
            since=self.since,
            rank=self.rank,
            cause=cause,
            cause_share=share,
            lateness_ms=round(float(self.total.sum()) / self.late * 1e-6, 4),
        )


class LateRank:
    """Names a rank that is late in more than half of the last `JUDGED` steps, if that is significant and no swing.

    The lateness of a rank in a step is the sum of its own parts minus the median of the other ranks' parts. `alpha` is
    the probability of a false alarm in one judgement, if steps are exchangeable. A rank that was late from the start is
    named after `REFERENCE` steps, if equal ranks would hardly ever be late that often.
    """

    def __init__(self, ranks: int, alpha: float, late: float = LATE) -> None:
        self._ranks = ranks
        self._alpha = alpha / ranks
        self._late = late
        self._steps: deque[_Judged] = deque(maxlen=JUDGED + REFERENCE)
        self._spell: _Spell | None = None
        self._swings = Swings()
        self.named: int | None = None

    def add(self, first: int, parts: Values) -> list[Event]:
        """Add the steps from `first` on (steps x ranks x `PARTS`, ns); returns new events."""
        if self._ranks < 2:
            return []
        found = excesses(parts)
        total, least = found.sum(axis=2), self._late * np.median(parts[:, :, 0], axis=1)
        for index, latest in enumerate(total.argmax(axis=1)):
            excess = found[index, latest]
            rank = int(latest) if total[index, latest] >= least[index] else -1
            self._steps.append((first + index, rank, excess))
            if self._spell is not None and rank == self._spell.rank:
                self._spell.add(excess)
        now = first + len(parts) - 1
        return [] if len(self._steps) < JUDGED else self._judge(now)

    def reset(self) -> None:
        """Forget the steps so far, so that later steps are not compared with them."""
        self._steps.clear()
        self._spell = None

    def _judge(self, now: int) -> list[Event]:
        steps = list(self._steps)
        recent, before = steps[-JUDGED:], steps[:-JUDGED]
        counts = Counter(late for _, late, _ in recent if late >= 0)
        found: list[Event] = []
        if self.named is not None and not counts[self.named]:
            found.append(Event(event="recovered", step=now, since=recent[0][0], rank=self.named))
            self.named = None
        spell = self._follow(now, recent, counts)
        if spell is None or spell.rank == self.named:
            return found
        earlier = sum(late == spell.rank for _, late, _ in before)
        if fisher(counts[spell.rank], JUDGED, earlier, len(before)) <= self._alpha:
            spell.is_proven = True
        seen = spell if spell.is_proven else self._all_along(steps, spell.rank)
        if seen is not None:
            event = seen.event(now)
            if self._swings.is_news(str(event.cause), now + 1 - min(spell.since, seen.since)):
                self.named = spell.rank
                found.append(event)
        return found

    def _follow(self, now: int, recent: Sequence[_Judged], counts: Counter[int]) -> _Spell | None:
        """Return the spell that goes on or begins with the last steps; one that has ended shows how long swings are."""
        rank = next((rank for rank, count in counts.items() if 2 * count > JUDGED), None)
        if self._spell is not None and self._spell.rank != rank:
            self._swings.ended(shares(self._spell.total)[0], now + 1 - self._spell.since)
            self._spell = None
        if self._spell is None and rank is not None:
            self._spell = _Spell.of(rank, recent)
        return self._spell

    def _all_along(self, steps: Sequence[_Judged], rank: int) -> _Spell | None:
        """Return all steps as one spell of the rank if it is late more often in them than equal ranks ever are.

        Of equal ranks each is the late one in 1 / ranks of the steps in which one is late. Steps that depend on those
        before them count for fewer.
        """
        names = np.array([late for _, late, _ in steps])
        its, others = names == rank, (names >= 0) & (names != rank)
        if len(steps) < REFERENCE + JUDGED or 2 * its.sum() <= len(steps):
            return None
        share = independent_share(its.astype(float) - others) if others.any() else 1.0
        chance = binomial_tail(its.sum() * share, (its.sum() + others.sum()) * share, 1 / self._ranks)
        return _Spell.of(rank, steps) if chance <= self._alpha else None


@dataclass(slots=True)
class _Change:
    """A time in which steps take longer than before (`sign` 1) or less (-1)."""

    sign: int
    opened: int  # the first of the steps that showed it
    is_proven: bool = False


class Speed:
    """Finds a change of the step time: compares the last `SPEED` steps with the first ones.

    A change is reported if a two-sided Mann-Whitney test, exact at `alpha`, finds one, the medians differ by `least` or
    more, and it is no swing. Later steps are compared with the new speed.
    """

    def __init__(self, alpha: float, least: float = LATE) -> None:
        self._threshold = u_threshold(SPEED, REFERENCE, alpha / 2)
        self._least = least
        self._first: list[float] = []
        self._last: deque[tuple[int, float]] = deque(maxlen=REFERENCE + SPEED + LONGEST)
        self._change: _Change | None = None
        self._swings = Swings()

    def reset(self) -> None:
        """Forget the steps so far, so that later steps are not compared with them."""
        self._first.clear()
        self._last.clear()
        self._change = None

    def add(self, first: int, step_ns: Values) -> list[Event]:
        """Add the times of the steps from `first` on (ns); returns the change, if there is one."""
        for index, value in enumerate(step_ns.tolist()):
            self._last.append((first + index, value))
            if len(self._first) < REFERENCE:
                self._first.append(value)
        if len(self._last) < SPEED + REFERENCE:
            return []
        recent = np.array([value for _, value in list(self._last)[-SPEED:]])
        before, after = float(np.median(self._first)), float(np.median(recent))
        change = self._follow(before, after)
        if change is None:
            return []
        u = u_statistic(recent, np.array(self._first))
        if max(u, SPEED * REFERENCE - u) >= self._threshold:
            change.is_proven = True
        now = self._last[-1][0]
        if not change.is_proven or not self._swings.is_news(_SPEED, now + 1 - change.opened):
            return []
        event = self._event(before, after, change)
        self.reset()
        return [event]

    def _follow(self, before: float, after: float) -> _Change | None:
        """Return the change that goes on or begins with the last steps, as `LateRank._follow`."""
        sign = 0 if abs(after / before - 1) < self._least else int(np.sign(after - before))
        if self._change is not None and self._change.sign != sign:
            self._swings.ended(_SPEED, self._last[-1][0] + 1 - self._change.opened)
            self._change = None
        if self._change is None and sign:
            self._change = _Change(sign, self._last[-SPEED][0])
        return self._change

    def _event(self, before: float, after: float, change: _Change) -> Event:
        """Return the event, with the best split into two speeds as its date."""
        steps = [(step, value) for step, value in self._last if step >= change.opened - REFERENCE]
        values = np.array([value for _, value in steps])
        nearer = np.abs(values - after) < np.abs(values - before)
        split = int(np.argmax(np.cumsum(np.where(nearer, 1, -1)[::-1])[::-1]))
        ms = [round(value * 1e-6, 4) for value in (before, float(np.median(values[split:])))]
        now, since = steps[-1][0], steps[split][0]
        return Event(event="speed_changed", step=now, since=since, before_ms=ms[0], after_ms=ms[1])
