"""Of several things of one kind (optimizers, loaders) the one that the loop goes by."""

import weakref
from collections import Counter
from typing import Any, Literal

Heard = Literal["step", "other", "changed"]
_PATIENCE = 10  # uses of another thing after which the first is no longer what the loop goes by


class Principal:
    """The first thing that is used, until it is gone or only others are used."""

    def __init__(self) -> None:
        self._main: weakref.ref[Any] | None = None
        self._others: Counter[int] = Counter()  # uses since the last use of the main thing
        self._patience = _PATIENCE

    def hear(self, thing: Any) -> Heard:
        """Hear that `thing` is used: it ends a step, or is another one, or has taken over from the main thing."""
        main = self._main() if self._main is not None else None
        if main is None:
            self._main = weakref.ref(thing)
        elif main is not thing:
            self._others[id(thing)] += 1
            if self._others[id(thing)] < self._patience:
                return "other"
            self._main = weakref.ref(thing)
            self._patience *= 4  # an inner loop must not take over again and again
            self._others.clear()
            return "changed"
        self._others.clear()
        return "step"

    def release(self, thing: Any) -> None:
        """Let the next one take over: `thing` is exhausted."""
        if self._main is not None and self._main() is thing:
            self._main = None
