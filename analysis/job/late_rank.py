"""Finds the late rank of a job without a profiler and without a common clock: by how much, how surely, and why.

Input: a `Window`, and the timed collectives if the backend has a recorder. Output: a `JobVerdict`.
Definitions: docs/metrics.md, "Without the profiler".
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.chance import median_interval
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.table import Column
from rankscope.analysis.job.cause import Cause, Why, cause_of, stands_still
from rankscope.analysis.job.host_pace import HostPace
from rankscope.analysis.job.timed_calls import TimedCalls
from rankscope.analysis.job.traced import Traced
from rankscope.analysis.job.variation import (
    FAR_OUT,
    interquartile,
    own_time,
    slower_beside_waits,
    spread,
    waited_for_others,
)
from rankscope.analysis.job.window import Matrix, Window
from rankscope.analysis.measure.stragglers import VerdictName
from rankscope.conf.chance import binomial_tail, independent_share
from rankscope.conf.others import median_of_others

_SHARED_CORES = "rank {} comes after the others, but no longer than it waited for a core: other work takes its cores"
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
    gain_ns: float = 0.0  # per step: what mending its cause saves, as `_gain` estimates it
    step_ns: float | None = None  # the usual step
    late_steps: list[tuple[int, int, float]] = []  # step, rank, lateness
    reason: str | None = None  # why undetermined, or why none although a rank comes last


def judge(
    window: Window,
    calls: TimedCalls | None,
    limits: Limits,
    plain: Window | None = None,
    traced: Traced | None = None,
) -> JobVerdict:
    """Return the verdict over the counted steps of a window; `calls` are the timed collectives of its steps.

    Fixing the rank saves the same share of a step in the plain window as in this one. None: `window` is the plain one.
    `traced` is what the trace of the same job shows: it may explain a lateness, but not name a rank.
    """
    pace = HostPace.of(window, timed=calls is not None)
    window = window.only(window.counted)
    name = "plain" if calls is None else "timed"
    if len(window.ranks) < 2:
        return JobVerdict(verdict="none", window=name, steps_judged=len(window.steps))
    if len(window.steps) < FEW_STEPS:
        reason = f"{len(window.steps)} steps are too few to distinguish a late rank from chance: {FEW_STEPS} are needed"
        return JobVerdict(verdict="undetermined", window=name, steps_judged=len(window.steps), reason=reason)
    exposed = 0.0 if traced is None else traced.exposed_share
    late = from_parts(window) if calls is None else calls.lateness(window.ranks, window.steps, exposed)
    in_passes = None if calls is None else calls.waits_in_passes(window.ranks, window.steps, exposed)
    usual, varies = float(np.median(window.step_ns)), spread(window, in_passes)
    found = over_run(late, usual, limits, varies)
    if found.rank is None and calls is None:
        last = over_run(from_parts(window, core_waits=True), usual, limits, varies).rank
        found = msgspec.structs.replace(
            found, reason=None if last is None else _SHARED_CORES.format(window.ranks[last])
        )
    if found.rank is None and calls is None and (why_open := _maybe_late(window, usual, limits, varies)):
        return JobVerdict(verdict="undetermined", window=name, steps_judged=len(window.steps), reason=why_open)
    if found.rank is not None and calls is None:
        found = _at_least(found, window)
    if found.verdict == "rotating":
        found = _in_turn(found, window, stands_still(window, late, limits))
    numbered = [(window.steps[step], window.ranks[rank], lateness) for step, rank, lateness in found.late_steps]
    found = msgspec.structs.replace(found, window=name, late_steps=numbered, step_ns=usual)
    if found.rank is None:
        return found
    own_steps = {step for step, rank, _ in numbered if rank == window.ranks[found.rank]}
    its_rows = np.array([step in own_steps for step in window.steps])
    its_steps, lateness_ns = window.only(its_rows), found.lateness_ns or 0.0
    judged = window if found.verdict == "persistent" else None
    why = cause_of(its_steps, found.rank, lateness_ns, limits, pace, judged)
    if why is None and calls is not None and traced is not None:
        why = traced.cause_of(its_steps, found.rank, lateness_ns, limits)
        if why is not None and calls.sharing:  # what the rank is relieved of, the others get
            why = msgspec.structs.replace(why, excess_ns=why.excess_ns * (1 - 1 / calls.sharing))
    # A device that follows its host always comes last, so being late in some steps is no evidence against its rank.
    if why is None or (why.follows and found.verdict == "intermittent"):
        return _unexplained(found, window.ranks[found.rank])
    # The largest lateness at a call leaves out what a slow backward pass adds after this call.
    late_ns = np.maximum(late, from_parts(window))[found.rank]
    if len(window.ranks) > 2:  # the next one is the latest then
        late_ns = late_ns - np.delete(late, found.rank, 0).max(0)
    plain = window if plain is None or not plain.counted.any() else plain.only(plain.counted)
    gain = _gain(window, plain, np.where(its_rows, np.maximum(0.0, late_ns), 0.0), found.rank, why, pace)
    return msgspec.structs.replace(found, rank=window.ranks[found.rank], cause=why.cause, part=why.part, gain_ns=gain)


def _at_least(found: JobVerdict, window: Window) -> JobVerdict:
    """Return the verdict with an interval that also covers waits that the parts of the others do not show."""
    its = [step for step, rank, _ in found.late_steps if rank == found.rank]
    most = median_interval(from_parts(window, slower=slower_beside_waits(window))[found.rank][its])
    if found.interval_ns is None or most is None:
        return found
    return msgspec.structs.replace(found, interval_ns=(found.interval_ns[0], max(found.interval_ns[1], most[1])))


def _maybe_late(window: Window, step_ns: float, limits: Limits, varies: Column) -> str | None:
    """Return why it is not known that no rank is late: the others may compute slower because they wait for one."""
    slower = slower_beside_waits(window)
    if not slower.any():
        return None
    found = over_run(from_parts(window, slower=slower), step_ns, limits, varies + interquartile(slower))
    if found.rank is None or found.verdict != "persistent":
        return None
    return (
        f"rank {window.ranks[found.rank]} computes {(found.lateness_ns or 0.0) * 1e-6:.2f} ms longer in the forward "
        "pass, and less in the backward pass: only timed collectives tell whether the others wait for it"
    )


def _gain(window: Window, plain: Window, late_ns: Column, at: int, why: Why, pace: HostPace | None) -> float:
    """Return what mending the rank at position `at` saves in a plain step (ns); `late_ns` is by step of `window`."""
    usual = float(np.median(window.step_ns))
    to_plain = float(np.median(plain.step_ns)) / usual if usual else 1.0
    gain = float(np.minimum(late_ns, why.excess_ns).mean()) * to_plain
    if pace is not None:
        waited_ns = float(np.median(late_ns[late_ns > 0])) if why.holds_passes and (late_ns > 0).any() else 0.0
        after = pace.after_ns(window, at, known=why.follows, waited_ns=waited_ns)
        gain = min(gain, float(plain.step_ns.mean()) - after)
    return max(0.0, gain)


def _in_turn(found: JobVerdict, window: Window, stands: NDArray[np.bool_]) -> JobVerdict:
    """Return the verdict that no rank is late if devices only stand still in turn; `stands` is ranks x steps."""
    late = [step for step, rank, _ in found.late_steps if not stands[rank, step]]
    if 2 * len(late) > len(window.steps):
        return found
    reason = (
        f"the ranks take turns at coming {(found.lateness_ns or 0.0) * 1e-6:.2f} ms after the others, but in most of "
        "these steps no host takes that much longer; if the hosts or loaders bind a job, one rank always comes last"
    )
    return msgspec.structs.replace(found, verdict="none", lateness_ns=None, steps_late=0, late_steps=[], reason=reason)


def _unexplained(found: JobVerdict, rank: int) -> JobVerdict:
    """Return the verdict that no rank is late: one comes last, but no part of its step is longer than the others'.

    This happens in jobs that are bound by their hosts. One rank's host runs ahead until the device's queue is full, and
    the other sets the pace, although both are equally fast. Which one it is depends on chance.
    """
    reason = (
        f"rank {rank} comes {(found.lateness_ns or 0.0) * 1e-6:.2f} ms after the others, but no part of its step is "
        "longer by that much; if the hosts bind a job, one rank always comes last"
    )
    return msgspec.structs.replace(
        found, verdict="none", rank=None, lateness_ns=None, interval_ns=None, steps_late=0, late_steps=[], gain_ns=0.0,
        reason=reason,
    )  # fmt: skip


def from_parts(window: Window, *, core_waits: bool = False, slower: Matrix | float = 0.0) -> Matrix:
    """Return lateness (ranks x steps, ns) from the parts of the step, if collectives were not timed.

    A rank's own time is its step without the optimizer, and without the wait from its own gradients to those of all
    ranks. Its lateness is the excess over the median of the others, as far as the others wait for it. If it is unknown
    when a rank has its own gradients, the complete backward pass counts as waiting, and a slow one does not show.
    `slower` is by how much more the others may have waited.
    """
    after, own = waited_for_others(window), own_time(window, core_waits=core_waits)
    excess = own - median_of_others(own) + slower
    waited = median_of_others(after) - after + slower
    late: Matrix = np.maximum(0.0, np.minimum(excess, waited))
    return late


def over_run(late: Matrix, step_ns: float, limits: Limits, varies: Column | None = None) -> JobVerdict:
    """Return the verdict over a run from lateness (ranks x steps, ns); ranks and steps by position.

    `varies` is by rank what its lateness varies by without a fault (ns): a rank that is late in most steps must be late
    by more than that, one that is late in fewer steps by `FAR_OUT` times that.
    """
    varies = np.zeros(len(late)) if varies is None else varies
    often = _beyond(late, step_ns, limits, varies)
    if often.verdict == "persistent":
        return often
    rare = _beyond(late, step_ns, limits, FAR_OUT * varies)
    return rare if rare.rank is not None or often.rank is not None else often


def _beyond(late: Matrix, step_ns: float, limits: Limits, varies: Column) -> JobVerdict:
    """Return the verdict over the steps whose lateness is beyond `varies`.

    A step is late if its latest rank is late by at least `late_step` of the usual step. Among n equal ranks, each is
    the latest in 1 / n of the late steps. So the test is binomial, over the number of independent steps, times n ranks.
    """
    ranks, steps = late.shape
    latest = late.argmax(0)
    amount = late.max(0)
    at_all = amount >= limits.late_step * step_ns
    is_late = at_all & (amount >= varies[latest])
    listed = [(int(step), int(latest[step]), float(amount[step])) for step in np.flatnonzero(is_late)]
    if not listed:
        return JobVerdict(verdict="none", steps_judged=steps)
    totals = np.array([amount[is_late & (latest == rank)].sum() for rank in range(ranks)])
    rank = int(totals.argmax())
    its = is_late & (latest == rank)
    signs = np.where(at_all, np.where(latest == rank, 1.0, -1.0), 0.0)  # how long one rank stays the latest
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
