"""The claim of a rule that a part of the step can be removed."""

from typing import Any

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.table import Column
from rankscope.analysis.core.units import estimate_ms
from rankscope.analysis.explain.facts import Facts
from rankscope.analysis.explain.rule import Claim


def removable(
    facts: Facts,
    limits: Limits,
    removed: Column,
    column: str,
    *,
    evidence: dict[str, Any] | None = None,
    overrides: list[str] | None = None,
    variant: str | None = None,
) -> Claim | None:
    """Claim a part of the step (ns per row), on the ranks where it is long enough to report; None if there are none."""
    gain = facts.gain(removed)
    per_rank = facts.per_rank(removed)
    ranks = [rank for rank, value in per_rank.items() if value >= limits.reported * facts.step_ns]
    if not ranks or gain < limits.reported * facts.step_ns:
        return None
    shown = {f"{column}_ms": {str(rank): estimate_ms(per_rank[rank]) for rank in ranks}}
    return Claim(ranks=ranks, gain_ns=gain, evidence=shown | (evidence or {}), overrides=overrides, variant=variant)
