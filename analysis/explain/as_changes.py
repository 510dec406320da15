"""The change that stands for mending a finding, so that a user can give its id instead of a change.

Input: findings. Output: changes as text. Such a change removes all of what the finding is about, so its prediction says
what mending it would bring at best.
"""

from collections.abc import Sequence

from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.explain.finding import Finding

# For findings that may be about some of the ranks: those become as the others. Otherwise nothing is left of the work.
_OF_RANKS = {
    "straggler_compute": ("compute",),
    "straggler_host": ("host", "launch"),
    "straggler_data": ("loader",),
    "straggler_copy": ("copy",),
    "data_stall": ("loader",),
}
# For findings about work that is spread unevenly: the sum over the ranks stays the same.
_UNEVEN = ("uneven_stages",)
_EVEN = "compute=mean"
_OF_ALL = {
    "exposed_comm": ("transfer",),
    "exposed_gather": ("transfer",),
    "no_overlap": ("transfer",),
    "large_last_bucket": ("transfer",),
    "small_buckets": ("transfer",),
    "host_gap": ("host", "launch"),
    "sync_in_loop": ("sync",),
    "host_bound_launch": ("host", "launch"),
    "copy_bound": ("copy",),
}


def changes_of(words: Sequence[str], findings: Sequence[Finding], world_size: int, *, gpu: bool) -> list[str]:
    """Return the words with the ids of findings replaced by the changes that mend them.

    `gpu`: whether a device was recorded; only then calls that launch are told from other work on the host.
    """
    found: list[str] = []
    by_id = {item.id: item for item in findings}
    for word in words:
        if word in by_id:
            mended = _changes(by_id[word], world_size)
            found += [change for change in mended if gpu or "launch" not in change]
        elif word in _OF_RANKS or word in _OF_ALL or word in _UNEVEN:
            there = ", ".join(by_id) or "none"
            raise AnalysisError(f"{word}: this recording has no such finding; it has {there}")
        else:
            found.append(word)
    return found


def _changes(finding: Finding, world_size: int) -> list[str]:
    if finding.id in _UNEVEN or finding.evidence.get("relieved_share", 1) < 1:
        return [_EVEN]
    if finding.id in _OF_RANKS and len(finding.ranks) < world_size:
        ranks = ",".join(map(str, finding.ranks))
        return [f"ranks{ranks}.{work}=median" for work in _OF_RANKS[finding.id]]
    works = _OF_RANKS.get(finding.id) or _OF_ALL.get(finding.id)
    if works is None:
        raise AnalysisError(f"{finding.id}: no change of the recorded work stands for mending it; try `rankscope try`")
    return [f"{work}=instant" for work in works]
