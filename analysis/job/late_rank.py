"""Finds the late rank of a job without a profiler and without a common clock: by how much, how surely, and why.

Input: a `Window`, and the timed collectives if the backend has a recorder. Output: a `JobVerdict`.
Definitions: docs/metrics.md, "Without the profiler".
"""

from typing import Literal

import msgspec
import numpy as np

from rankscope.analysis.core.chance import binomial_tail, independent_share, median_interval
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.job.timed_calls import TimedCalls
from rankscope.analysis.job.window import Matrix, Window
from rankscope.analysis.measure.stragglers import VerdictName
from rankscope.conf.contract import DATA_WAIT, DEVICE_RANGES

Cause = Literal["compute", "data", "host", "copy"]
FEW_STEPS = 8  # fewer steps cannot distinguish a late rank from chance


class JobVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Which rank is late in the steps that were not profiled; times in ns."""

    verdict: VerdictName
    window: str | None = None  # the pass that was judged: timed | plain
    rank: int | None = None
    cause: Cause | None = None  # None: unknown
    part: str | None = None  # the part of the step in which the time is lost
    lateness_ns: float | None = None  # median over its late steps
    interval_ns: tuple[float, float] | None = None  # of that median, 95 %
    steps_late: int = 0
    steps_judged: int = 0
    chance: float | None = None  # the probability that one of equal ranks has this many late steps
    gain_ns: float = 0.0  # per step: what the others lose at most by waiting for it
    late_steps: list[tuple[int, int, float]] = []  # step, rank, lateness
    reason: str | None = None  # why undetermined


def judge(window: Window, calls: TimedCalls | None, limits: Limits) -> JobVerdict:
    """Return the verdict over the counted steps of a window; `calls` are the timed collectives of its steps."""
    window = window.only(window.counted)
    name = "plain" if calls is None else "timed"
    if len(window.ranks) < 2:
        return JobVerdict(verdict="none", window=name, steps_judged=len(window.steps))
    if len(window.steps) < FEW_STEPS:
        reason = f"{len(window.steps)} steps are too few to distinguish a late rank from chance: {FEW_STEPS} are needed"
        return JobVerdict(verdict="undetermined", window=name, steps_judged=len(window.steps), reason=reason)
    late = from_parts(window) if calls is None else calls.lateness(window.ranks, window.steps)
    found = over_run(late, float(np.median(window.step_ns)), limits)
    numbered = [(window.steps[step], window.ranks[rank], lateness) for step, rank, lateness in found.late_steps]
    found = msgspec.structs.replace(found, window=name, late_steps=numbered)
    if found.rank is None:
        return found
    at = found.rank
    steps = np.array([step for step, rank, _ in numbered if rank == window.ranks[at]])
    cause, part = cause_of(window.only(np.isin(window.steps, steps)), at, found.lateness_ns or 0.0, limits)
    return msgspec.structs.replace(found, rank=window.ranks[at], cause=cause, part=part)


def from_parts(window: Window) -> Matrix:
    """Return lateness (ranks x steps, ns) from the parts of the step, if collectives were not timed.

    A rank's own time is its step without backward and optimizer. Its lateness is the excess over the median of the
    others, as far as their backward passes wait for it. This cannot show a slow backward pass.
    """
    own = window.step_ns - window.part("backward") - window.part("optimizer")
    excess = own - _others(own)
    waited = _others(window.part("backward")) - window.part("backward")
    late: Matrix = np.maximum(0.0, np.minimum(excess, waited))
    return late


def over_run(late: Matrix, step_ns: float, limits: Limits) -> JobVerdict:
    """Return the verdict over a run from lateness (ranks x steps, ns); ranks and steps by position.

    A step is late if its latest rank is late by at least `late_step` of the usual step. Among n equal ranks, each is
    the latest in 1 / n of the late steps. So the test is binomial, over the number of independent steps, times n ranks.
    """
    ranks, steps = late.shape
    latest = late.argmax(0)
    amount = late.max(0)
    is_late = amount >= limits.late_step * step_ns
    listed = [(int(step), int(latest[step]), float(amount[step])) for step in np.flatnonzero(is_late)]
    if not listed:
        return JobVerdict(verdict="none", steps_judged=steps)
    totals = np.array([amount[is_late & (latest == rank)].sum() for rank in range(ranks)])
    rank = int(totals.argmax())
    its = is_late & (latest == rank)
    signs = np.where(its, 1.0, np.where(is_late, -1.0, 0.0))
    share = independent_share(signs) if (signs < 0).any() else 1.0
    chance = min(1.0, ranks * binomial_tail(its.sum() * share, is_late.sum() * share, 1 / ranks))
    if chance > limits.chance:
        taking_turns = is_late.sum() * 2 > steps
        return JobVerdict(
            verdict="rotating" if taking_turns else "none",
            steps_late=len(listed) if taking_turns else 0,
            steps_judged=steps,
            lateness_ns=float(np.median(amount[is_late])) if taking_turns else None,
            chance=chance,
            late_steps=listed if taking_turns else [],
        )
    lateness = amount[its]
    return JobVerdict(
        verdict="persistent" if its.sum() * 2 > steps else "intermittent",
        rank=rank,
        lateness_ns=float(np.median(lateness)),
        interval_ns=median_interval(lateness),
        steps_late=int(its.sum()),
        steps_judged=steps,
        chance=chance,
        gain_ns=float(lateness.sum()) / steps,
        late_steps=listed,
    )


def cause_of(window: Window, at: int, lateness_ns: float, limits: Limits) -> tuple[Cause | None, str | None]:
    """Return why the rank at position `at` is late in the steps of `window`, and in which part of the step.

    The cause is the loader or copies if their excess over the other ranks explains the lateness. Otherwise the host's
    lead decides: if the host has enqueued its step before the device has finished it, the device is slow.
    """

    def excess(part: str) -> float:
        values = window.part(part)
        return float(np.median(values[at] - _others(values)[at]))

    needed = limits.cause_share * lateness_ns
    if excess("data_wait") >= needed:
        return "data", "waiting for the loader"
    if excess("h2d") >= needed:
        return "copy", "copies to the device"
    ahead = window.columns.get("host_ahead")
    if not window.on_device or ahead is None or np.isnan(ahead).any():
        if excess("forward") >= needed:
            return "compute", "forward"
        rest = window.step_ns - sum(window.part(name) for name in DEVICE_RANGES)
        if not window.on_device:
            rest = rest - window.part(DATA_WAIT)
        return ("host", "outside forward and backward") if _excess(rest, at) >= needed else (None, None)
    if float(np.mean(ahead[at])) >= 0.5:
        return "compute", "forward" if excess("forward") >= needed else "backward"
    lost = {name: excess(f"{name}_host") for name in ("forward", "backward", "optimizer")}
    own = sum(window.part(f"{name}_host") for name in lost) + window.part("data_wait")
    lost["outside forward, backward and optimizer"] = _excess(window.columns["host_ns"] - own, at)
    where = max(lost, key=lambda name: lost[name])
    return "host", where if lost[where] >= needed else None


def _others(values: Matrix) -> Matrix:
    """Return for each rank the median of the others."""
    ranks = len(values)
    return np.array([np.median(np.delete(values, rank, 0), 0) for rank in range(ranks)])


def _excess(values: Matrix, at: int) -> float:
    return float(np.median(values[at] - _others(values)[at]))
