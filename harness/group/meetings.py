"""Decides at each meeting point whether all ranks have come. Nobody waits there longer than a limit.

Ranks of a script need not step alike: one may step alone first, or have fewer batches. A rank that waited for the
others without a limit would hold up a job that ends well by itself. So every meeting is decided once, for all ranks:
the last to come decides that they are together, the first to lose patience that they are apart. After that nobody
waits again. The decision is an atomic entry in the store of torchrun's agent.
"""

import time
from typing import Any

_POLL_S = 0.002
_LONGEST_POLL_S = 0.05
_ELSEWHERE_S = 0.25  # how often to look where the others wait
_TRIES = 3  # to begin together once all ranks step
_TOGETHER, _APART = "together", "apart"


class Meetings:
    """The meetings of one job; `apart` once a meeting has failed, on every rank from its next meeting on.

    A meeting lasts at most as long as the time since the last one, at least `least_s` and at most `most_s`.
    """

    def __init__(self, store: Any, rank: int, world_size: int, *, least_s: float, most_s: float) -> None:
        self.apart = False
        self._store, self._rank, self._world_size = store, rank, world_size
        self._least_s, self._most_s = least_s, most_s
        self._counts: dict[str, int] = {}
        self._passed: set[str] = set()
        self._last = time.monotonic()
        self._arrived = False

    def enter(self, *, patient: bool = False) -> bool:
        """Try to begin together. False: not all ranks have come; try again at the next step.

        Waits the first time, and again once every other rank has been here.
        """
        waiting = not self._arrived
        here = self._store.add("arrived", 0 if self._arrived else 1)
        self._arrived = True
        self._store.set(f"here/{self._rank}", "1")
        if self._store.check([_APART]):
            self.apart = True
            return True
        if not waiting and here < self._world_size:
            return False
        deadline = time.monotonic() + (self._most_s if patient else min(self._least_s, self._most_s))
        while True:
            tries = self._store.add("tries", 0)
            decided, mine = self._wait_for(f"begin/{tries}", deadline)
            if decided == _TOGETHER:
                self._last = time.monotonic()
                return True
            if mine:
                self._store.add("tries", 1)
                if self._store.add("arrived", 0) >= self._world_size and self._store.add("missed", 1) >= _TRIES:
                    self._store.set(_APART, "begin")
                return False
            while self._store.add("tries", 0) == tries:  # the rank that decided counts it in a moment
                time.sleep(_POLL_S)

    def absent(self) -> list[int]:
        """Return the ranks that have never tried to begin."""
        return [rank for rank in range(self._world_size) if not self._store.check([f"here/{rank}"])]

    def meet(self, purpose: str) -> bool:
        """Wait for all ranks at the next meeting for `purpose`; returns whether all have come."""
        if self.apart:
            return False
        self._counts[purpose] = self._counts.get(purpose, 0) + 1
        name = f"{purpose}/{self._counts[purpose]}"
        since = time.monotonic() - self._last
        deadline = time.monotonic() + min(self._most_s, max(self._least_s, since))
        self._store.set(f"at/{self._rank}", name)
        decided, mine = self._wait_for(name, deadline)
        if mine and decided == _APART:
            self._store.set(_APART, name)
        self._passed.add(name)
        self._last = time.monotonic()
        self.apart = decided == _APART
        return not self.apart

    def finish(self) -> None:
        """Report that this rank has recorded everything."""
        self._store.add("finished", 1)

    @property
    def all_finished(self) -> bool:
        return int(self._store.add("finished", 0)) >= self._world_size

    def _wait_for(self, name: str, deadline: float) -> tuple[str, bool]:
        """Return the decision about a meeting, and whether this rank made it."""
        if self._store.add(f"count/{name}", 1) == self._world_size:
            return self._decide(name, _TOGETHER)
        poll, look = _POLL_S, time.monotonic() + _ELSEWHERE_S
        while not self._store.check([f"decided/{name}"]):
            now = time.monotonic()
            if now > deadline or self._store.check([_APART]):
                return self._decide(name, _APART)
            if now > look:
                look = now + _ELSEWHERE_S
                if self._others_wait_elsewhere(name):
                    return self._decide(name, _APART)
            time.sleep(poll)
            poll = min(_LONGEST_POLL_S, poll * 1.2)
        return bytes(self._store.get(f"decided/{name}")).decode(), False

    def _decide(self, name: str, wanted: str) -> tuple[str, bool]:
        decided = bytes(self._store.compare_set(f"decided/{name}", "", wanted)).decode()
        return decided, decided == wanted

    def _others_wait_elsewhere(self, name: str) -> bool:
        """Whether every rank waits in a meeting, and not all in this one: they would wait in vain."""
        keys = [f"at/{rank}" for rank in range(self._world_size)]
        if not self._store.check(keys):
            return False
        places = {bytes(self._store.get(key)).decode() for key in keys}
        return not places & self._passed and places != {name}
