"""Finds steps that are far longer than usual: what they cost, on which ranks, in which part, and how regularly.

Input: the plain `Window`. Output: `SlowSteps`, None if no step is slow. A step is slow if the job's step (the median
over ranks) is more than `slow_step` times the usual step, which is the median, and far outside of what steps vary by.
The same of one rank's own time makes a step slow too: where ranks wait for cores, the job's steps vary by more.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.table import Column
from rankscope.analysis.core.units import estimate_ms
from rankscope.analysis.job.variation import fence, own_time, waited_for_core
from rankscope.analysis.job.window import Matrix, Window
from rankscope.conf import PassDir
from rankscope.conf.contract import DATA_WAIT, DEVICE_RANGES
from rankscope.conf.files import read_bytes

Place = Literal["waiting for the loader", "the host", "copies to the device", "forward", "backward", "optimizer"]

_OF_SLOWEST = 0.1  # steps that lose less than this share of what the slowest loses are noise next to it


class SlowSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The slow steps of a window; times in ms."""

    steps: list[int]
    ranks: list[int]  # on which the time is lost; every rank if unknown
    waiting: list[int]  # ranks that wait for those
    place: Place | None
    usual_ms: float
    slow_ms: float  # median of the slow steps
    lost_ms: float  # mean per step: the excess of the slow steps over the usual step
    mean_ms: float
    share: float  # of the window's time: lost_ms / mean_ms
    period: int | None  # every `period` steps
    core_wait_share: float | None = None  # of what slow steps lose: threads of the ranks waited for a core so long
    where: str | None = None  # file:line function, from stacks taken while a slow step lasted


def find(window: Window, limits: Limits, stacks: Mapping[int, Sequence[Mapping[str, Any]]]) -> SlowSteps | None:
    """Return the slow steps. `stacks` has samples of each rank's main thread: step, and the user's line (`place`)."""
    job = np.median(window.step_ns, axis=0)
    counted = window.counted
    if counted.sum() < 3:
        return None
    usual = float(np.median(job[counted]))
    slow = job > max(limits.slow_step * usual, fence(job[counted]))
    slow |= (job > usual) & _slow_on_one_rank(window, usual, limits)
    slow &= job - usual >= _OF_SLOWEST * float((job - usual)[counted].max())
    if not (slow & counted).any() or (slow & counted).sum() * 2 > counted.sum():
        return None
    lost = float((job[slow & counted] - usual).sum()) / float(counted.sum())
    mean = float(job[counted].mean())

    events, before = (_firsts(window, slow & chosen) for chosen in (counted, ~counted))
    at_fault, place = _at_fault(window, slow & counted)
    ranks = [window.ranks[row] for row in at_fault]
    took = usual + (job - usual)[slow & counted].sum() / len(events)
    return SlowSteps(
        steps=events,
        ranks=ranks or window.ranks,
        waiting=[rank for rank in window.ranks if ranks and rank not in ranks],
        place=place,
        usual_ms=estimate_ms(usual),
        slow_ms=estimate_ms(took),
        lost_ms=estimate_ms(lost),
        mean_ms=estimate_ms(mean),
        share=round(lost / mean, 4),
        period=_period(events, [step for step, on in zip(window.steps, counted, strict=True) if on], before),
        core_wait_share=_core_wait_share(window, job - usual, slow & counted),
        where=_where(stacks, ranks or window.ranks, {step + after for step in events for after in (0, 1)}),
    )


def _slow_on_one_rank(window: Window, usual: float, limits: Limits) -> Column:
    """Return by step whether a rank's own time is far longer than usual, by at least as much as a slow step is."""
    own = own_time(window)
    found = np.zeros(len(window.steps), bool)
    for times in own:
        known = times[window.counted]
        found |= (times > fence(known)) & (times - np.median(known) >= (limits.slow_step - 1) * usual)
    return found


def _firsts(window: Window, slow: Column) -> list[int]:
    """Return the steps at which slow steps begin; several in a row are one event."""
    return [window.steps[row] for row in np.flatnonzero(slow & ~np.concatenate([[False], slow[:-1]]))]


def _at_fault(window: Window, slow: Column) -> tuple[list[int], Place | None]:
    """Return the positions of the ranks on which the time is lost, and in which part of the step.

    A rank that waits for another loses its time in the backward pass, after it has computed its own gradients. So a
    rank is at fault if at least half of the excess of its slow steps is elsewhere.
    """
    parts: dict[str, Matrix] = {name: window.part(name) for name in DEVICE_RANGES}
    rest = window.step_ns - sum(parts.values())
    waiting = parts["backward"] - window.backward_compute_ns
    parts["backward"] = window.backward_compute_ns
    waits = np.minimum(window.part(DATA_WAIT), np.maximum(rest, 0))
    parts |= {"data_wait": waits, "host": rest - waits}
    excess = {name: _excess(values, window.counted, slow) for name, values in parts.items()}
    total = _excess(window.step_ns, window.counted, slow)
    own = total - np.maximum(0, _excess(waiting, window.counted, slow))
    fault = [row for row in range(len(window.ranks)) if total[row] > 0 and own[row] >= total[row] / 2]
    if not fault:
        return [], "backward"
    sums = {name: float(np.sum([excess[name][row] for row in fault])) for name in parts}
    names: dict[str, Place] = {
        "data_wait": "waiting for the loader",
        "host": "the host",
        "h2d": "copies to the device",
        "forward": "forward",
        "backward": "backward",
        "optimizer": "optimizer",
    }
    return fault, names[max(sums, key=lambda name: sums[name])]


def _core_wait_share(window: Window, excess: Column, slow: Column) -> float | None:
    """Return how much of the excess of slow steps is waiting for a core, on the rank that waited longest in each."""
    waited = waited_for_core(window)
    if waited is None:
        return None
    usual = np.median(waited[:, window.counted & ~slow], axis=1)
    longer = np.maximum(0.0, waited - usual[:, None])[:, slow].max(axis=0)
    return round(float(np.minimum(longer, excess[slow]).sum() / excess[slow].sum()), 4)


def _excess(values: Matrix, counted: Column, slow: Column) -> Column:
    """Return for each rank how much longer a part is in slow steps than in usual ones (ns, mean)."""
    usual = np.median(values[:, counted & ~slow], axis=1)
    found: Column = values[:, slow].mean(1) - usual
    return found


def _period(slow: Sequence[int], steps: Sequence[int], warm_up: Sequence[int]) -> int | None:
    """Return the number of steps from one slow step to the next if it is always the same; None if that is not shown.

    `slow` are the slow steps among the counted `steps`, `warm_up` the slow steps before them. Three in a row show it;
    two do so if one before the counted steps fits.
    """
    gaps = set(np.diff(slow).tolist())
    if len(slow) < 2 or len(gaps) != 1:
        return None
    period = int(gaps.pop())
    fits = any((slow[0] - step) % period == 0 for step in warm_up)
    missed_before, missed_after = slow[0] - steps[0] >= period, steps[-1] - slow[-1] >= period
    return None if period < 2 or missed_before or missed_after or (len(slow) < 3 and not fits) else period


def _where(stacks: Mapping[int, Sequence[Mapping[str, Any]]], ranks: Sequence[int], slow: set[int]) -> str | None:
    """Return the user's line in most samples of slow steps; None without samples."""
    counts: dict[str, int] = {}
    for rank in ranks:
        for sample in stacks.get(rank, ()):
            place = sample.get("place")
            if sample.get("step") in slow and isinstance(place, str):
                counts[place] = counts.get(place, 0) + 1
    return max(counts, key=lambda place: counts[place]) if counts else None


def read_stacks(pass_dir: PassDir) -> dict[int, list[dict[str, Any]]]:
    """Read `slow_steps.json` of every rank: the place of its main thread while a step took too long."""
    found = {}
    for rank_dir in pass_dir.ranks():
        try:
            found[rank_dir.rank] = msgspec.json.decode(read_bytes(rank_dir.slow_steps), type=list[dict[str, Any]])
        except (OSError, ValueError, RecursionError):
            continue
    return found
