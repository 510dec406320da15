"""The changes that stand for mending findings, so that a user can give the id of a finding instead of a change.

Input: findings. Output: changes as text. Such a change removes all of what the finding is about, so its prediction says
what mending it would bring at best.
"""

from collections.abc import Sequence

from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.explain.finding import Finding
from rankscope.analysis.explain.findings import rule_of
from rankscope.analysis.explain.mending import changes_for


def changes_of(words: Sequence[str], findings: Sequence[Finding], recorded: int, *, gpu: bool) -> list[str]:
    """Return the words with the ids of findings replaced by the changes that mend them.

    `recorded`: how many ranks can be compared. `gpu`: whether a device was recorded; only then calls that launch are
    told from other work on the host.
    """
    found: list[str] = []
    by_id = {item.id: item for item in findings}
    for word in words:
        rule = rule_of(word)
        if word in by_id:
            mended = None if rule is None else rule.mended
            if mended is None:
                text = "no change of the recorded work mends it; give a change instead, such as compute*0.9"
                raise AnalysisError(f"{word}: {text}")
            found += changes_for(by_id[word], mended, recorded, gpu=gpu)
        elif rule is not None:
            there = ", ".join(by_id) or "none"
            raise AnalysisError(f"{word}: this recording has no such finding; it has {there}")
        else:
            found.append(word)
    return found
