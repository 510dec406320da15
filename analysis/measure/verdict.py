"""Decides which steps can be judged, and what is said about late ranks; or why nothing can be said."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from rankscope.analysis.align.clock import Alignment
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.table import Table
from rankscope.analysis.measure import step_choice, stragglers
from rankscope.analysis.measure.stragglers import Verdict
from rankscope.analysis.rank.rank_data import RankData

_ONE_STEP = "a window of one step only shows when the ranks' profilers started"
_NO_PARTNERS = "collectives have no partner in any of the steps"


def decide(
    calls: Table,
    steps: Table,
    late: Table,
    chosen: list[int],
    lossy: list[int],
    *,
    ranks: Sequence[RankData],
    world_size: int,
    alignment: Alignment,
    unpaired: Mapping[str, str],
    undecided: str | None,
    limits: Limits,
) -> tuple[list[int], Verdict]:
    """Return the judged steps and the verdict over them.

    `chosen` are the analysed steps, `lossy` steps with lost records, whose collectives still show who is late,
    `unpaired` the groups whose calls cannot be paired, with the reasons, `undecided` why no verdict is possible.
    """
    candidates = sorted({*chosen, *lossy})
    counted = steps.take(np.isin(steps["step"], chosen or candidates))
    step_ns = float(np.median(counted["step_ns"])) if len(counted) else 0.0
    judged = step_choice.judged(candidates, steps, stragglers.least_lateness(step_ns, alignment, limits))
    if not undecided:
        unknown = stragglers.open_steps(calls, set(unpaired))
        judged = [step for step in judged if step not in unknown]
    reason = f"collectives cannot be paired: {next(iter(unpaired.values()))}" if unpaired else None
    if undecided or not candidates:
        return judged, Verdict(verdict="undetermined", reason=undecided or "no complete step was recorded")
    if world_size == 1:
        return judged, Verdict(verdict="none", steps_judged=len(judged))
    if not judged:
        reason = reason or (_ONE_STEP if len(candidates) < 2 else _NO_PARTNERS)
        return judged, Verdict(verdict="undetermined", reason=reason)
    verdict = stragglers.judge(late, calls, ranks, alignment, judged, steps, step_ns, limits)
    if reason is None:
        return judged, verdict
    if verdict.verdict in ("none", "undetermined"):
        return judged, Verdict(verdict="undetermined", reason=reason)
    return judged, msgspec.structs.replace(verdict, reason=reason)  # what is found holds, but more ranks may be late
