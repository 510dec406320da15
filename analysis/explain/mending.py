"""What mending a finding would bring, by a replay of the recorded steps without its fault.

Input: findings with gains from the parts of the steps, and the recording. Output: the same findings with limited gains.
A replay shows what the parts cannot: whether something else decides how long the step is. It needs the plain step. The
profiler slows the host by an unknown amount. So each replay is done twice: with the most and with the least work of the
host that gives the plain step.
"""

from collections.abc import Mapping, Sequence

import msgspec

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.units import estimate_ms
from rankscope.analysis.explain.finding import SEVERITIES, Finding, severity
from rankscope.analysis.explain.gain_limit import Room
from rankscope.analysis.explain.rule import Mended, Rule
from rankscope.analysis.measure.recording import Recording
from rankscope.analysis.replay.changes import Change, parse
from rankscope.analysis.replay.graph import Work
from rankscope.analysis.replay.predict import Replayed, replay

_MOST_RECORDS = 50_000  # of all ranks: replaying more takes several seconds
_EXPLAINED = 0.95  # share of the step that the recorded work must give; what follows from less is not known
_NS_PER_MS = 1e6
_SAME = 0.5  # share of the smaller gain from which two findings claim the same time


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What a change saves, ms per step, with the most and with the least work of the host."""

    slow_host_ms: float
    fast_host_ms: float

    @property
    def least_ms(self) -> float:
        return min(self.slow_host_ms, self.fast_host_ms)

    @property
    def most_ms(self) -> float:
        return max(self.slow_host_ms, self.fast_host_ms)


def changes_for(finding: Finding, mended: Mended, recorded: int, *, gpu: bool) -> list[str]:
    """Return the changes that remove what the finding is about; `recorded` ranks can be compared."""
    if mended.even or finding.evidence.get("relieved_share", 1) < 1:
        return [f"{work}=mean" for work in mended.works]
    works = [work for work in mended.works if gpu or work != "launch"]
    if mended.as_others and len(finding.ranks) < recorded:
        ranks = ",".join(map(str, finding.ranks))
        return [f"ranks{ranks}.{work}=median" for work in works]
    return [f"{work}=instant" for work in works]


class Mending:
    """Replays the recorded steps without the faults of findings."""

    def __init__(self, replayed: Replayed, plain_ms: float, recorded: int, rules: Mapping[str, Rule]) -> None:
        self._replayed, self._rules = replayed, rules
        self._plain_ms, self._recorded = plain_ms, recorded
        self._before = self._steps(())
        self._gains: dict[tuple[str, ...], Gain | None] = {}

    @classmethod
    def of(cls, recording: Recording, plain_ms: float, rules: Mapping[str, Rule]) -> "Mending | None":
        """Return None if the recorded work does not explain the recorded steps, or not the plain ones."""
        records = sum(len(data.kernels) for data in recording.ranks)
        if not recording.on_gpu or recording.stretch is not None or records > _MOST_RECORDS:
            return None
        try:
            replayed = replay(recording, plain_ms)
        except AnalysisError:
            return None
        graph = replayed.graph
        unknown = graph.reasons or graph.explained_ns() < _EXPLAINED * graph.step_ns(graph.time)
        if unknown or not replayed.as_plain:
            return None
        return cls(replayed, plain_ms, len(recording.ranks), rules)

    def gain(self, *found: Finding) -> Gain | None:
        """Return what mending these findings together saves; None if no change stands for one of them."""
        changes: list[str] = []
        for item in sorted(found, key=lambda item: item.id):
            mended = self._rules[item.id].mended
            if mended is None:
                return None
            changes += changes_for(item, mended, self._recorded, gpu=True)
        key = tuple(dict.fromkeys(changes))
        if key not in self._gains:
            self._gains[key] = self._gain(key)
        return self._gains[key]

    def _gain(self, changes: tuple[str, ...]) -> Gain | None:
        try:
            after = self._steps(changes)
        except AnalysisError:
            return None  # the work that would change was not recorded
        slow, fast = (max(0.0, self._plain_ms * (1 - now / was)) for now, was in zip(after, self._before, strict=True))
        return Gain(slow_host_ms=slow, fast_host_ms=fast)

    def _steps(self, changes: Sequence[str]) -> list[float]:
        """Return the replayed step (ns) with the most and with the least work of the host."""
        parsed = [change for text in changes if isinstance(change := parse(text), Change)]
        found = []
        for fast_host in (False, True):
            graph, times, _ = self._replayed.run(parsed, fast_host=fast_host)
            found.append(graph.step_ns(times))
        return found

    def limited(self, item: Finding, room: Room | None, limits: Limits) -> Finding | None:
        """Return the finding with at most the replayed gain; None if that is too small to report.

        It becomes larger only if the change removes exactly the fault, and at most as large as `room` has left.
        """
        rule, gain, replayed = self._rules[item.id], item.recoverable_ms, self.gain(item)
        if gain is None or replayed is None or rule.mended is None:
            return item
        new = min(gain, replayed.most_ms) if rule.mended.complete else gain
        if rule.mended.exact and room is not None:
            most = room.left(rule.remains, item.ranks, rule.part)
            new = max(new, replayed.least_ms if most is None else min(replayed.least_ms, most))
        new = estimate_ms(new * _NS_PER_MS)
        share = new / self._plain_ms
        if share < limits.reported and rule.drop_if_small:
            return None
        evidence = item.evidence | {
            "replayed_ms": [estimate_ms(value * _NS_PER_MS) for value in (replayed.least_ms, replayed.most_ms)],
            "step_ms": estimate_ms(self._plain_ms * _NS_PER_MS),  # the step that the gain is part of
        }
        level = severity(share, limits)
        if new <= gain:  # it may have been capped
            level = min(level, item.severity, key=SEVERITIES.index)
        return msgspec.structs.replace(item, recoverable_ms=new, evidence=evidence, severity=level)

    def share_time(self, item: Finding, other: Finding) -> bool | None:
        """Return whether mending both brings much less than the sum of both; None if a replay cannot tell.

        It cannot if time may belong to a copy or to the host, because then both gains contain it.
        """
        if (self._replayed.graph.edges.work == Work.MEMORY).any():
            return None
        one, two = self.gain(item), self.gain(other)
        if one is None or two is None or not min(one.fast_host_ms, two.fast_host_ms):
            return None
        both = self.gain(item, other)
        smaller = min(one.fast_host_ms, two.fast_host_ms)
        return None if both is None else one.fast_host_ms + two.fast_host_ms - both.fast_host_ms >= _SAME * smaller
