"""What mending a finding would bring, by a replay of the recorded steps without its fault.

Input: findings with gains from the parts of the steps, and the recording. Output: the same findings with the gains of
the replay, which sees what the parts cannot: that something else decides how long the step is, or what becomes faster
with the fault. It needs the plain step, because under a profiler often the host decides.
"""

from collections.abc import Mapping, Sequence

import msgspec

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.units import estimate_ms
from rankscope.analysis.explain.finding import Finding, severity
from rankscope.analysis.explain.gain_limit import Room
from rankscope.analysis.explain.rule import Mended, Rule
from rankscope.analysis.measure.recording import Recording
from rankscope.analysis.replay.changes import Change, parse
from rankscope.analysis.replay.predict import Replayed, replay

_MOST_RECORDS = 300_000  # of all ranks: replaying more takes seconds
_NS_PER_MS = 1e6
_SAME = 0.5  # share of the smaller gain from which two findings claim the same time


def changes_for(finding: Finding, mended: Mended, world_size: int, *, gpu: bool) -> list[str]:
    """Return the changes that remove what the finding is about; see `as_changes.changes_of`."""
    if mended.even or finding.evidence.get("relieved_share", 1) < 1:
        return [f"{work}=mean" for work in mended.works]
    works = [work for work in mended.works if gpu or work != "launch"]
    if mended.as_others and len(finding.ranks) < world_size:
        ranks = ",".join(map(str, finding.ranks))
        return [f"ranks{ranks}.{work}=median" for work in works]
    return [f"{work}=instant" for work in works]


class Mending:
    """Replays the recorded steps without the faults of findings."""

    def __init__(self, replayed: Replayed, plain_ms: float, world_size: int, rules: Mapping[str, Rule]) -> None:
        self._replayed, self._rules = replayed, rules
        self._plain_ms, self._world_size = plain_ms, world_size
        self._step_ns = self._step()
        self._gains: dict[tuple[str, ...], float | None] = {}

    @classmethod
    def of(cls, recording: Recording, plain_ms: float, rules: Mapping[str, Rule]) -> "Mending | None":
        """Return None if the recorded steps cannot be replayed as those of the job without a profiler."""
        records = sum(len(data.kernels) for data in recording.ranks)
        if not recording.on_gpu or recording.stretch is not None or records > _MOST_RECORDS:
            return None
        try:
            return cls(replay(recording, plain_ms), plain_ms, recording.world_size, rules)
        except AnalysisError:
            return None

    @property
    def as_plain(self) -> bool:
        """Whether the replay has the plain step's length; otherwise a gain holds only as a share of the step."""
        return self._replayed.as_plain

    def gain_ms(self, *found: Finding) -> float | None:
        """Return what mending these findings together saves, ms per step; None if no change stands for one of them."""
        key = tuple(sorted(item.id for item in found))
        if key not in self._gains:
            self._gains[key] = self._gain_ms(found)
        return self._gains[key]

    def _gain_ms(self, found: Sequence[Finding]) -> float | None:
        changes: list[str] = []
        for item in found:
            mended = self._rules[item.id].mended
            if mended is None:
                return None
            changes += changes_for(item, mended, self._world_size, gpu=True)
        try:
            return max(0.0, self._plain_ms * (1 - self._step(changes) / self._step_ns))
        except AnalysisError:
            return None  # the work that would change was not recorded

    def _step(self, changes: Sequence[str] = ()) -> float:
        parsed = [change for text in dict.fromkeys(changes) if isinstance(change := parse(text), Change)]
        graph, times, _ = self._replayed.run(parsed)
        return graph.step_ns(times)

    def applied(self, item: Finding, room: Room | None, limits: Limits) -> Finding | None:
        """Return the finding with the replayed gain; None if that is too small to report.

        A gain becomes smaller if the replay gives less. It becomes larger only if the change removes exactly the fault,
        and at most as large as `room` has left.
        """
        rule, gain, replayed = self._rules[item.id], item.recoverable_ms, self.gain_ms(item)
        if gain is None or replayed is None:
            return item
        new = min(gain, replayed)
        if rule.mended is not None and rule.mended.exact and self.as_plain and room is not None:
            most = room.left(rule.remains, item.ranks, rule.part)
            new = max(new, replayed if most is None else min(replayed, most))
        new = estimate_ms(new * _NS_PER_MS)
        share = new / self._plain_ms
        if share < limits.reported and rule.drop_if_small:
            return None
        evidence = item.evidence | {
            "replayed_ms": estimate_ms(replayed * _NS_PER_MS),
            "step_ms": estimate_ms(self._plain_ms * _NS_PER_MS),  # the step that the gain is part of
        }
        level = item.severity if new == gain else severity(share, limits)
        return msgspec.structs.replace(item, recoverable_ms=new, evidence=evidence, severity=level)

    def share_time(self, item: Finding, other: Finding) -> bool | None:
        """Return whether mending both brings much less than the sum of both; None if a replay cannot tell."""
        one, two, both = self.gain_ms(item), self.gain_ms(other), self.gain_ms(item, other)
        if one is None or two is None or both is None or not min(one, two):
            return None
        return one + two - both >= _SAME * min(one, two)
