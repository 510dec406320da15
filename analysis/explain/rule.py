"""`Rule`: everything about one kind of finding, in one place.

A rule checks `Facts` and returns a `Claim` or None; `Rule.apply` makes the `Finding`. The rule also declares how a
plain pass corrects it, which other findings claim the same time, and how much a fix can save. So no other module needs
its id.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.units import estimate_ms
from rankscope.analysis.explain.facts import Facts
from rankscope.analysis.explain.finding import Finding, severity

# The part of a step that a finding claims. Findings that claim the same part overlap.
Part = Literal["loader", "copies", "compute of a rank", "launches", "communication"]
# What stays in the step after the fix, so that no fix claims to save it:
#   device work       compute and exposed transfer stay
#   compute           only compute stays: the fix hides or shortens transfers
#   others' work      the late rank becomes as fast as the others, so the others' device work stays
#   nothing           the fix shortens compute itself
Remains = Literal["device work", "compute", "others' work", "nothing"]
# Where a page shows it: the latest rank or the longest piece of a part in the timeline, otherwise a section.
SeenIn = Literal[
    "late rank", "exposed_transfer", "data_stall", "copy", "host_gap", "steps", "collectives", "kernels", "trust"
]
# How the profiler's own time is in the finding: not at all, shared with the other findings about gaps, or only here.
Profiler = Literal["no", "shared", "own"]

WORKERS = 4  # loader workers per rank, as advised if there are cores for them


class Mended(msgspec.Struct, frozen=True, kw_only=True):
    """The change of the recorded work that removes what a finding is about, for `rankscope whatif` and the gain.

    `works` take no time then. If `as_others` and the finding names some of the ranks, these take as long for them as
    the others instead. If `even`, the sum over the ranks stays and all of them take as long.
    """

    works: tuple[str, ...]
    as_others: bool = False
    even: bool = False
    exact: bool = False  # it removes nothing else, so the replayed gain may exceed what the parts of the steps show
    complete: bool = True  # it removes all of the fault, so the replayed gain is a limit


class Advice(msgspec.Struct, frozen=True):
    """What to do, and the overrides of `rankscope run` that try it."""

    text: str
    overrides: tuple[str, ...] = ()


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule found."""

    gain_ns: float | None = None  # what a fix saves, ns per step; None: unknown
    ranks: list[int] | None = None  # None: every rank
    evidence: dict[str, Any] = {}
    variant: str | None = None  # the name of another advice of the rule
    overrides: list[str] | None = None  # None: those of the advice
    place: str = ""  # the place in the user's code; appended to the advice
    step_ms: float | None = None  # the step that the gain is part of; None: the traced step


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of finding."""

    id: str
    says: str  # for docs/findings.md: what is wrong
    seen_in: SeenIn
    based_on: str  # for docs/findings.md: the evidence
    check: Callable[[Facts, Limits], Claim | None]
    advice: Advice
    variants: Mapping[str, Advice] = {}
    part: Part | None = None
    mended: Mended | None = None  # None: no change of the recorded work stands for it
    remains: Remains = "device work"
    profiler_adds: Profiler = "no"
    rough_on_cpu: bool = False  # of low severity on a CPU, where the ends of collectives are imprecise
    late_rank: bool = False  # whether it is about a late rank
    unprofiled: bool = False  # also found in a run that was not traced
    beyond_usual: bool = False  # the time lies in unusual steps, so the usual step does not bound it
    counts_steps: bool = False  # it counts per step, so it says nothing about a window without steps
    drop_if_small: bool = False  # not reported if the correction by the plain pass leaves less than Limits.reported

    def apply(self, facts: Facts, limits: Limits) -> Finding | None:
        """Return the finding, or None if the facts do not show it."""
        claim = None if facts.stretch and self.counts_steps else self.check(facts, limits)
        if claim is None:
            return None
        advice = self.advice if claim.variant is None else self.variants[claim.variant]
        gain, step_ns = claim.gain_ns, facts.step_ns if claim.step_ms is None else claim.step_ms * 1e6
        return Finding(
            id=self.id,
            severity="low" if gain is None else severity(gain / step_ns, limits),
            ranks=facts.ranks if claim.ranks is None else claim.ranks,
            recoverable_ms=None if gain is None else estimate_ms(gain),
            evidence={**claim.evidence, "window_ms" if facts.stretch else "step_ms": estimate_ms(step_ns)},
            advice=f"{advice.text}: {claim.place}" if claim.place else advice.text,
            overrides=list(advice.overrides) if claim.overrides is None else claim.overrides,
        )
