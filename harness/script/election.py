"""Chooses what the steps of a script are: the marks of one source, by what the script really uses.

A script may make an optimizer that never steps, or read a loader once before it trains. So a source is chosen when it
is used, and a weaker one only after it was used often without a stronger one. Until then its marks are a preview,
which counts if the script ends.
"""

from collections import Counter
from typing import Literal

from rankscope.harness.observe.marks import Source

# the strongest first
ORDER: tuple[Source, ...] = ("recorder", "profiler", "optimizer", "loader", "backward", "model")
Heard = Literal["ignore", "preview", "step", "switch"]
_SURE: dict[Source, int] = {"recorder": 1, "profiler": 1, "optimizer": 1, "loader": 3, "backward": 10, "model": 10}
_SURE_WITHOUT_STRONGER = 3  # marks after which a started profiler that never steps is passed over
_SURE_WITHOUT_OPTIMIZER = 200  # marks after which an optimizer that exists and never steps is passed over
_UNUSED = 10  # marks of another source after which the chosen one is no longer what the loop goes by
# A source that takes over from the chosen one: at its first mark, or if only it is used.
_STRONGER: dict[Source, tuple[Source, ...]] = {
    "loader": ("recorder", "optimizer"),
    "backward": ("recorder", "optimizer"),
    "model": ("recorder", "optimizer", "backward"),
}
_INSTEAD: dict[Source, tuple[Source, ...]] = {"profiler": ("optimizer",), "loader": ("backward",)}
_REASONS: dict[Source, str] = {
    "recorder": "one call of Recorder.step()",
    "profiler": "one call of the script's own prof.step()",
    "optimizer": "one step of an optimizer",
    "loader": "one batch of a DataLoader",
    "backward": "one backward pass",
    "model": "one call of the model",
}


def kind_of(source: Source) -> str:
    """Return the kind of step: ranks whose steps are of different kinds do not step together."""
    return "control" if source in ("recorder", "profiler", "optimizer") else source


class Election:
    """Hears the marks of all sources; `source` is the chosen one, None until there is one."""

    def __init__(self, asked: Source | None, known: Source | None = None, why: str | None = None) -> None:
        """`asked` by the user, or `known` from an earlier start, which also said `why`."""
        self.source: Source | None = asked or known
        self.asked = self.source is not None
        self._why = None if asked else why
        self.promised: set[Source] = set()  # made or started, and perhaps never used
        self.computes = False  # whether a model was called
        self.counts: Counter[Source] = Counter()
        self._others: Counter[Source] = Counter()  # since the last mark of the chosen source

    def hear(self, source: Source) -> Heard:
        """Hear a mark: a step of the chosen source ends, or another source takes over (`switch`)."""
        self.counts[source] += 1
        if self.asked:
            return "step" if source == self.source else "ignore"
        if self.source is None:
            return self._choose(source)
        if source == self.source:
            self._others.clear()
            return "step"
        self._others[source] += 1
        stronger = source in _STRONGER.get(self.source, ())
        if stronger or (source in _INSTEAD.get(self.source, ()) and self._others[source] >= _UNUSED):
            self.source = source
            self._others.clear()
            return "switch"
        return "ignore"

    def why(self, source: Source) -> str:
        """Return one line on what a step was taken to be, and why."""
        if self._why is not None:
            return self._why
        if self.asked:
            return f"a step is {_REASONS[source]}, as steps_from={source} asks for"
        passed = [item for item in ORDER[: ORDER.index(source)] if item in self.promised and item != source]
        unused = [f"the {item} never stepped" for item in passed if not self.counts[item]]
        absent = {
            "loader": "no optimizer stepped",
            "backward": "no optimizer stepped and no DataLoader gave the batches",
            "model": "there is no optimizer step, batch of a DataLoader or backward pass",
        }
        reason = ", ".join(unused) or absent.get(source, "")
        return f"a step is {_REASONS[source]}{f': {reason}' if reason else ''} (steps_from chooses otherwise)"

    def _choose(self, source: Source) -> Heard:
        stronger = ORDER[: ORDER.index(source)]
        if any(self.counts[item] for item in stronger) or ("recorder" in self.promised and source != "recorder"):
            return "ignore"
        if self.counts[source] < self._enough(source):
            return "preview"
        self.source = source
        return "step"

    def _enough(self, source: Source) -> int:
        promised = self.promised & set(ORDER[: ORDER.index(source)])
        if not promised and (source != "loader" or self.computes or self.counts["backward"]):
            return _SURE[source]
        return _SURE_WITHOUT_STRONGER if source == "optimizer" else _SURE_WITHOUT_OPTIMIZER
