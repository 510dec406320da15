"""Decides which steps can be judged, and what is said about late ranks; or why nothing can be said."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from rankscope.analysis.align.clock import Alignment
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.table import Table
from rankscope.analysis.measure import step_choice, stragglers
from rankscope.analysis.measure.majority import late_majority
from rankscope.analysis.measure.segments import Explainer
from rankscope.analysis.measure.stragglers import Verdict
from rankscope.analysis.rank.rank_data import RankData
from rankscope.conf.chance import binomial_tail

_ONE_STEP = "a window of one step only shows when the ranks' profilers started"
_FEW_STEPS = 8  # fewer steps cannot distinguish a late rank from chance, unless it stands out in each of them
_APART = 3.0  # times the range of the steps
_CHANCE = "under the profiler ranks that share cores seem late by chance, and {} steps are too few to tell"
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
    if verdict.verdict == "none":
        lossy_steps = set(steps["step"][~np.asarray(steps["complete"], bool)].tolist())
        least = stragglers.least_lateness(step_ns, alignment, limits)
        verdict = late_majority(calls, Explainer(calls, ranks, lossy_steps), steps, judged, least, limits) or verdict
        verdict = _within_the_clock(verdict, late.take(np.isin(late["step"], judged)), step_ns, alignment, limits)
    if any(data.mode != "device" for data in ranks):
        verdict = _beyond_chance(verdict, steps, world_size, limits)
    if reason is None:
        return judged, verdict
    if verdict.verdict in ("none", "undetermined"):
        return judged, Verdict(verdict="undetermined", reason=reason)
    return judged, msgspec.structs.replace(verdict, reason=reason)  # what is found holds, but more ranks may be late


def _within_the_clock(verdict: Verdict, late: Table, step_ns: float, alignment: Alignment, limits: Limits) -> Verdict:
    """Return the verdict that nobody is late, or undetermined if the clocks are too far apart to know that."""
    if verdict.verdict != "none" or not verdict.steps_judged:
        return verdict
    amount = int(late["lateness_ns"].max(initial=0))
    clear = stragglers.least_lateness(step_ns, alignment, limits) <= max(1, limits.straggler_share * step_ns)
    if clear or amount < limits.straggler_share * step_ns:
        return verdict
    bound_ms = (alignment.bound_ns or 0) * 1e-6
    reason = (
        f"a rank comes {amount * 1e-6:.2f} ms after the others, and the clocks of the ranks are only known to "
        f"{bound_ms:.2f} ms"
    )
    return Verdict(verdict="undetermined", steps_judged=verdict.steps_judged, reason=reason)


def _beyond_chance(verdict: Verdict, steps: Table, world_size: int, limits: Limits) -> Verdict:
    """Return the verdict if late ranks on a CPU stand out from chance and from what steps vary by.

    Ranks on a CPU share the cores with one another and with other work. So with few steps, a rank must be late in each
    of them by three times what the steps differ; with more, in more of them than chance allows, by more than they vary
    by.
    """
    named = [item for item in verdict.per_step if item.rank == verdict.rank]
    if not named:
        return verdict
    numbers = np.unique([item.step for item in verdict.per_step])
    judged = verdict.steps_judged
    times = np.array([np.median(steps["step_ns"][steps["step"] == step]) for step in numbers.tolist()])
    amounts = np.array([item.lateness_ns for item in named], float)
    least_chance = world_size * binomial_tail(judged, judged, 1 / world_size)  # of a rank that is late in each step
    if judged < _FEW_STEPS or least_chance > limits.chance:
        if 1 < judged == len(named) and amounts.min() > _APART * np.ptp(times):
            return verdict
        return Verdict(verdict="undetermined", steps_judged=judged, reason=_CHANCE.format(judged))
    chance = world_size * binomial_tail(len(named), verdict.steps_late, 1 / world_size)
    low, high = np.percentile(times, [25, 75])
    if chance <= limits.chance and np.median(amounts) >= high - low:
        return verdict
    return Verdict(verdict="none", steps_judged=judged)
