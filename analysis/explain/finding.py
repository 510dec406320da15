"""`Finding`: one thing that costs time, as in `summary.json`."""

from typing import Any, Literal

import msgspec

from rankscope.analysis.core.limits import Limits

Severity = Literal["high", "medium", "low"]
SEVERITIES: tuple[Severity, ...] = ("low", "medium", "high")  # the least first


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that costs time, the ranks that it affects, and what to do about it."""

    id: str
    severity: Severity
    ranks: list[int]
    recoverable_ms: float | None  # None: unknown
    evidence: dict[str, Any]
    advice: str
    overrides: list[str] = []  # overrides of `rankscope run` that try the fix


def severity(share: float, limits: Limits) -> Severity:
    """Return the severity of a finding whose fix saves this share of the step."""
    return "high" if share >= limits.high else "medium" if share >= limits.medium else "low"
