"""Says what late ranks are within the job: all ranks of one group, or the ranks of one stage of a pipeline.

Input: the late ranks and a `Recording`. Output: a `LateGroup`, or None if they are neither.
"""

from collections.abc import Iterable, Sequence

import msgspec

from rankscope.analysis.align.groups import group_members
from rankscope.analysis.measure.dimensions import ALL_RANKS, names_by_group
from rankscope.analysis.measure.pipeline_stages import Pipeline
from rankscope.analysis.measure.recording import Recording


class LateGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The late ranks are exactly one group of `dimension`, or exactly the ranks at `position` of all its groups."""

    dimension: str
    position: int | None  # the stage of a pipeline, from 0


def late_group(ranks: Iterable[int], recording: Recording, pipelines: Sequence[Pipeline]) -> LateGroup | None:
    """Return what exactly these ranks have in common."""
    late = set(ranks)
    if not late or len(late) == recording.world_size:
        return None
    by_dimension = _groups(recording)
    if pipelines:  # the order of the stages is known, not only that of the ranks
        by_dimension["pp"] = [[stage.rank for stage in pipeline.stages] for pipeline in pipelines]
    stage = _stage(late, by_dimension.get("pp", []))
    if stage is not None:
        return LateGroup(dimension="pp", position=stage)
    for dimension, groups in by_dimension.items():
        if len(late) > 1 and late in map(set, groups):
            return LateGroup(dimension=dimension, position=None)
    return None


def _groups(recording: Recording) -> dict[str, list[list[int]]]:
    """Return the members of the groups of each dimension, smaller groups first."""
    found: dict[str, list[list[int]]] = {}
    for code, dimension in names_by_group(recording).items():
        members = group_members(recording.calls.words["group_id"][code]) if code >= 0 else None
        if members is not None and 1 < len(members) < recording.world_size and dimension != ALL_RANKS:
            found.setdefault(dimension, []).append(members)
    return dict(sorted(found.items(), key=lambda item: len(item[1][0])))


def _stage(late: set[int], pipelines: Sequence[Sequence[int]]) -> int | None:
    """Return the stage whose ranks are late; None if they are of several, or not all of one."""
    stages = {rank: stage for ranks in pipelines for stage, rank in enumerate(ranks)}
    found = {stages.get(rank) for rank in late}
    stage = found.pop() if len(found) == 1 else None
    same = {rank for rank, position in stages.items() if position == stage}
    return stage if same == late else None
