"""Names the late rank of a watched run and its cause (docs/monitor.md).

In: the parts of every step and rank (`PARTS`, ns). Out: `Event`s. Every rank gets the same numbers, so every rank finds
the same events.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from rankscope.conf.chance import binomial_tail, independent_share
from rankscope.harness.watch.event import Event
from rankscope.harness.watch.exact_tests import Values, fisher
from rankscope.harness.watch.parts import CAUSES, late_ranks, shares
from rankscope.harness.watch.swings import Swings

LATE = 0.05  # share of the median step from which a rank counts as late
JUDGED, REFERENCE = 10, 100  # steps that are judged, and steps that they are compared with
_Judged = tuple[int, int, Values]  # a step, its late rank or -1, and that rank's excess (`CAUSES`, ns)


@dataclass(slots=True)
class _Spell:
    """A time in which one rank is late in most steps."""

    rank: int
    since: int
    last: int  # the last step in which the rank was late
    late: int = 0  # steps
    total: Values = field(default_factory=lambda: np.zeros(len(CAUSES)))  # of the excess, ns
    is_proven: bool = False  # whether a test has found that it is no chance

    @classmethod
    def of(cls, rank: int, steps: Sequence[_Judged]) -> Self:
        its = [(step, excess) for step, late, excess in steps if late == rank]
        return cls(rank, its[0][0], its[-1][0], len(its), np.sum([excess for _, excess in its], axis=0))

    @property
    def kind(self) -> str:
        """The cause with the largest share."""
        return CAUSES[int(self.total.argmax())]

    def add(self, step: int, excess: Values) -> None:
        self.last = step
        self.late += 1
        self.total = self.total + excess

    def event(self, now: int, since: int) -> Event:
        cause, share = shares(self.total)
        return Event(
            event="late_rank",
            step=now,
            since=since,
            rank=self.rank,
            cause=cause,
            cause_share=share,
            lateness_ms=round(float(self.total.sum()) / self.late * 1e-6, 4),
        )


class LateRank:
    """Names a rank that is late in more than half of the last `JUDGED` steps, if that is significant and no swing.

    The lateness of a rank in a step is the sum of its own parts minus the median of the other ranks' parts. `alpha` is
    the probability of a false alarm in one judgement, if steps are exchangeable and ranks equal. A rank that was late
    from the start is named after `REFERENCE` steps.
    """

    def __init__(self, ranks: int, alpha: float, late: float = LATE) -> None:
        self._ranks = ranks
        self._alpha = alpha / ranks / 2  # of each of two tests
        self._late = late
        self._steps: deque[_Judged] = deque(maxlen=JUDGED + REFERENCE)
        self._spell: _Spell | None = None
        self._swings = Swings()
        self.named: int | None = None

    def add(self, first: int, parts: Values) -> list[Event]:
        """Add the steps from `first` on (steps x ranks x `PARTS`, ns); returns new events."""
        if self._ranks < 2:
            return []
        ranks, found = late_ranks(parts, self._late)
        for step, rank, excess in zip(range(first, first + len(parts)), ranks.tolist(), found, strict=True):
            self._steps.append((step, rank, excess))
            if self._spell is not None and rank == self._spell.rank:
                self._spell.add(step, excess)
        return [] if len(self._steps) < JUDGED else self._judge(first + len(parts) - 1)

    def interrupt(self) -> None:
        """Begin anew, because a profiler came between; a spell that the test has found goes on."""
        self._steps.clear()
        if self._spell is not None and not self._spell.is_proven:
            self._spell = None

    def _judge(self, now: int) -> list[Event]:
        steps = list(self._steps)
        recent, before = steps[-JUDGED:], steps[:-JUDGED]
        counts = Counter(late for _, late, _ in recent if late >= 0)
        found: list[Event] = []
        if self.named is not None and not counts[self.named]:
            found.append(Event(event="recovered", step=now, since=recent[0][0], rank=self.named))
            self.named = None
        spell = self._follow(recent, counts)
        if spell is None or spell.rank == self.named:
            return found
        earlier = sum(late == spell.rank for _, late, _ in before)
        if fisher(counts[spell.rank], JUDGED, earlier, len(before)) <= self._alpha:
            spell.is_proven = True
        seen = spell if spell.is_proven else self._all_along(steps, spell.rank)
        if seen is not None:
            since = min(spell.since, seen.since)
            if self._swings.is_news(seen.kind, now, now + 1 - since):
                self.named = spell.rank
                found.append(seen.event(now, since))
        return found

    def _follow(self, recent: Sequence[_Judged], counts: Counter[int]) -> _Spell | None:
        """Return the spell in which a rank is late in most of the last steps, old or new.

        A spell ends if another rank has one, or if its rank is late in none of the last steps. Then it shows how long
        swings are.
        """
        rank = next((rank for rank, count in counts.items() if 2 * count > JUDGED), None)
        spell = self._spell
        if spell is not None and (not counts[spell.rank] or rank not in (None, spell.rank)):
            self._swings.ended(spell.kind, spell.last, spell.last + 1 - spell.since)
            self._spell = None
        if self._spell is None and rank is not None:
            self._spell = _Spell.of(rank, recent)
        return None if rank is None else self._spell

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
