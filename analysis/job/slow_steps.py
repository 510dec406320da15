"""Finds steps that are far longer than usual: what they cost, on which ranks, in which part, and how regularly.

Input: the plain `Window`. Output: `SlowSteps`, None if no step is slow. A rank's step is slow if it is far longer than
the usual one. Slow steps of all ranks in a row are one event: if a rank saves a checkpoint at the end of its step, the
others wait for it in their next one. What an event costs is the median over ranks of what each rank loses in it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

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
_NAMED_FROM = 0.25  # share of what all slow steps cost, from which a rank at fault is named


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
    counted = window.counted
    if counted.sum() < 3:
        return None
    usual = float(np.median(np.median(window.step_ns[:, counted], axis=1)))
    mean = float(np.median(window.step_ns, axis=0)[counted].mean())
    inside, before = _events(window, usual, limits)
    slow = np.zeros(len(counted), bool)
    for event in inside:
        slow[event.rows] = True
    if not inside or not (counted & ~slow).any():
        return None
    total = sum(event.lost_ns for event in inside)
    lost = total / float(counted.sum())

    events = [window.steps[event.rows.start] for event in inside]
    warm_up = [window.steps[event.rows.start] for event in before]
    at_fault, place = _at_fault(window, inside, slow)
    ranks = [window.ranks[row] for row in at_fault]
    return SlowSteps(
        steps=events,
        ranks=ranks or window.ranks,
        waiting=[rank for rank in window.ranks if ranks and rank not in ranks],
        place=place,
        usual_ms=estimate_ms(usual),
        slow_ms=estimate_ms(usual + total / len(events)),
        lost_ms=estimate_ms(lost),
        mean_ms=estimate_ms(mean),
        share=round(lost / mean, 4),
        period=_period(events, [step for step, on in zip(window.steps, counted, strict=True) if on], warm_up),
        core_wait_share=_core_wait_share(window, inside, slow),
        where=_where(stacks, ranks or window.ranks, {step + after for step in events for after in (0, 1)}),
    )


class _Event(msgspec.Struct, frozen=True):
    """Slow steps in a row."""

    rows: slice
    lost_ns: float


def _events(window: Window, usual: float, limits: Limits) -> tuple[list[_Event], list[_Event]]:
    """Return the events of the counted steps, and those of the warm-up.

    An event costs the job at least as much as one slow step does, and is not noise next to the counted ones. There are
    none if more than half of a rank's steps are slow.
    """
    counted = window.counted
    slow, own_slow = np.zeros(len(counted), bool), np.zeros(len(counted), bool)
    for times, own in zip(window.step_ns, own_time(window), strict=True):
        of_rank = times > max(limits.slow_step * usual, fence(times[counted]))
        if (of_rank & counted).sum() * 2 > counted.sum():
            return [], []
        slow |= of_rank
        if not window.on_device:  # there ranks share cores, and one long step of one rank drowns in their waits
            own_slow |= (own > fence(own[counted])) & (own - np.median(own[counted]) >= (limits.slow_step - 1) * usual)
    longer = window.step_ns - np.median(window.step_ns[:, counted], axis=1)[:, None]

    def events(chosen: Column) -> list[_Event]:
        edges = np.flatnonzero(np.diff(np.concatenate([[False], (slow | own_slow) & chosen, [False]])))
        found = []
        for begin, end in edges.reshape(-1, 2).tolist():
            rows = slice(begin, end)
            lost = float(np.median(longer[:, rows].sum(1)))
            if lost > (0 if own_slow[rows].any() else (limits.slow_step - 1) * usual):
                found.append(_Event(rows, lost))
        return found

    inside = events(counted)
    least = _OF_SLOWEST * max((event.lost_ns for event in inside), default=0.0)
    kept, before = ([event for event in some if event.lost_ns >= least] for some in (inside, events(~counted)))
    return kept, before


def _at_fault(window: Window, events: Sequence[_Event], slow: Column) -> tuple[list[int], Place | None]:
    """Return the positions of the ranks on which the time is lost, and in which part of the step.

    A rank that waits for another loses its time in the backward pass, after it has computed its own gradients. So a
    rank is at fault if at least half of the excess of its slow steps is elsewhere. Ranks may take turns: a rank that is
    at fault in events that none of those explains is named too, if these events are a quarter of what all of them cost.
    """
    parts: dict[str, Matrix] = {name: window.part(name) for name in DEVICE_RANGES}
    rest = window.step_ns - sum(parts.values())
    waiting = parts["backward"] - window.backward_compute_ns
    parts["backward"] = window.backward_compute_ns
    waits = np.minimum(window.part(DATA_WAIT), np.maximum(rest, 0))
    parts |= {"data_wait": waits, "host": rest - waits}
    usual = window.counted & ~slow
    excess = {name: _excess(values, usual) for name, values in parts.items()}
    total, waited = _excess(window.step_ns, usual), _excess(waiting, usual)
    before = excess["data_wait"] + excess["host"] + excess["h2d"]
    fault = _own(total[:, slow], waited[:, slow])
    turns = np.zeros(len(window.ranks))
    for event in events:
        own = _own(total[:, event.rows], waited[:, event.rows])
        if not (own & fault).any():
            if window.on_device:  # a device that has lost its lead follows its host in both passes, which is no fault
                own &= before[:, event.rows].sum(1) >= total[:, event.rows].sum(1) / 2
            turns += np.where(own, event.lost_ns, 0.0)
    fault |= turns >= _NAMED_FROM * sum(event.lost_ns for event in events)
    if not fault.any():
        return [], "backward"
    sums = {name: float(values[fault][:, slow].sum()) for name, values in excess.items()}
    names: dict[str, Place] = {
        "data_wait": "waiting for the loader",
        "host": "the host",
        "h2d": "copies to the device",
        "forward": "forward",
        "backward": "backward",
        "optimizer": "optimizer",
    }
    return np.flatnonzero(fault).tolist(), names[max(sums, key=lambda name: sums[name])]


def _own(total: Matrix, waited: Matrix) -> NDArray[np.bool_]:
    """Return by rank whether at least half of its excess in some steps is not waiting for others."""
    lost = total.sum(1)
    found: NDArray[np.bool_] = (lost > 0) & (lost - np.maximum(0, waited.sum(1)) >= lost / 2)
    return found


def _core_wait_share(window: Window, events: Sequence[_Event], slow: Column) -> float | None:
    """Return how much of what events cost is waiting for a core, on the rank that waited longest in each step."""
    waited = waited_for_core(window)
    if waited is None:
        return None
    usual = np.median(waited[:, window.counted & ~slow], axis=1)
    longer = np.maximum(0.0, waited - usual[:, None]).max(axis=0)
    waits = sum(min(float(longer[event.rows].sum()), event.lost_ns) for event in events)
    return round(waits / sum(event.lost_ns for event in events), 4)


def _excess(values: Matrix, usual_rows: Column) -> Matrix:
    """Return how much longer a part is than in the usual steps of its rank (ranks x steps, ns)."""
    found: Matrix = values - np.median(values[:, usual_rows], axis=1)[:, None]
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
