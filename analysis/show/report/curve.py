"""The steps of a recording as a curve: every step of every rank, without a profiler if such steps were recorded.

Input: the `Analysis` and its summary. Output: plain values for `curve.js`, times in ms. With many ranks or steps the
curve holds what can be seen: some ranks by name and the range of all, and of many steps the longest of each group.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankscope.analysis.core.json import Json
from rankscope.analysis.core.table import Column
from rankscope.analysis.job.window import Matrix, Window
from rankscope.analysis.result import Analysis

_RANKS = 12  # with a line of their own
_POINTS = 1500  # of a line
_FOR_P95 = 20  # steps
_VARIES = 0.02  # a clock or power that varies by less is not drawn
_GAUGES = (("gpu_clock_mhz", "SM clock, MHz"), ("gpu_power_w", "power, W"), ("gpu_temperature_c", "temperature, C"))


def curve(analysis: Analysis, summary: Json) -> Json | None:
    """Return the curve of the plain window, otherwise of the traced steps; None if no step was recorded."""
    window = analysis.without.window
    return _traced(analysis, summary) if window is None else plain_curve(window, summary)


def group_starts(count: int, most: int) -> Column:
    """Return where groups of neighbouring steps begin, at most `most` groups of about the same size."""
    starts: Column = np.unique(np.linspace(0, count, min(most, count) + 1).astype(int))[:-1]
    return starts


def plain_curve(window: Window, summary: Json) -> Json:
    """Return the curve of steps without a profiler; `name` is empty, for a page of several runs to fill."""
    slow = summary.get("slow_steps") or {}
    gauges = [(title, window.columns[name]) for name, title in _GAUGES if name in window.columns]
    times = window.step_ns * 1e-6
    found = _lines(window.ranks, window.steps, times, _named(window.ranks, times, summary), window.counted)
    return found | {
        "profiler": None,
        "counted": [window.steps[row] for row in np.flatnonzero(window.counted)[[0, -1]]]
        if window.counted.any()
        else None,
        "marks": _marks(_median(times[:, window.counted], axis=0)),
        "slow": slow.get("steps", []),
        "gauges": [gauge for title, values in gauges if (gauge := _gauge(title, window, values)) is not None],
    }


def _traced(analysis: Analysis, summary: Json) -> Json | None:
    table = analysis.step_table
    if not len(table):
        return None
    ranks, steps = np.unique(table["rank"]), np.unique(table["step"])
    times = np.full((len(ranks), len(steps)), np.nan)
    rows, columns = np.searchsorted(ranks, table["rank"]), np.searchsorted(steps, table["step"])
    times[rows, columns] = (table["end_ns"] - table["start_ns"]) * 1e-6
    numbers = ranks.tolist()
    found = _lines(numbers, steps.tolist(), times, _named(numbers, times, summary), np.ones(len(steps), bool))
    marks = _marks(_median(times, axis=0))
    return found | {"profiler": analysis.profiler, "counted": None, "marks": marks, "slow": [], "gauges": []}


def _median(times: Matrix, axis: int) -> Column:
    """Return medians of what is known; NaN if nothing is."""
    found: Column = np.ma.median(  # type: ignore[no-untyped-call]
        np.ma.masked_invalid(times), axis=axis
    ).filled(np.nan)
    return found


def _marks(job: Column) -> Json:
    """Return mean, p50 and p95 of the job's steps, which are the median over ranks; p95 of at least 20 steps."""
    known = job[~np.isnan(job)]
    if not len(known):
        return {"mean": None, "p50": None, "p95": None}
    p95 = float(np.percentile(known, 95)) if len(known) >= _FOR_P95 else None
    return {"mean": float(known.mean()), "p50": float(np.median(known)), "p95": p95}


def _named(ranks: Sequence[int], times: Matrix, summary: Json) -> list[int]:
    """Return the rows that get a line: all, or of many the late ranks, the slowest and the fastest."""
    if len(ranks) <= _RANKS:
        return list(range(len(ranks)))
    late = [row for row, rank in enumerate(ranks) if rank in summary.get("stragglers", {}).get("ranks", [])][
        : _RANKS // 2
    ]
    order = np.argsort(np.nan_to_num(np.nanmedian(times, axis=1))).tolist()
    found = dict.fromkeys([*late, *reversed(order[-2:]), order[0], *range(len(ranks))])
    return sorted(list(found)[:_RANKS])


def _lines(ranks: Sequence[int], steps: Sequence[int], times: Matrix, named: Sequence[int], counted: Column) -> Json:
    """Return the lines of the named ranks, and the lowest and highest time of all ranks if there are more.

    Their numbers are those of the `counted` steps.
    """
    starts = group_starts(len(steps), _POINTS)
    grouped = np.fmax.reduceat(times, starts, axis=1)
    found: Json = {
        "name": "",
        "steps": [steps[at] for at in starts],
        "grouped": len(starts) < len(steps),
        "count": len(steps),
        "all": len(ranks),
        "ranks": [ranks[row] for row in named],
        "ms": [_rounded(grouped[row]) for row in named],
        "numbers": [_numbers(ranks[row], times[row][counted]) for row in named],
        "range": None,
    }
    if len(named) < len(ranks):
        low, high = np.fmin.reduce(grouped, axis=0), np.fmax.reduce(grouped, axis=0)
        found["range"] = {"low": _rounded(low), "high": _rounded(high)}
    return found


def _numbers(rank: int, times: Column) -> Json:
    known = times[~np.isnan(times)]
    return {"rank": rank, "max": float(known.max()) if len(known) else None} | _marks(times)


def _gauge(title: str, window: Window, values: Matrix) -> Json | None:
    """Return a gauge by rank and step; None if it hardly varies."""
    known = values[~np.isnan(values)]
    if not len(known) or known.max() - known.min() < _VARIES * max(1.0, float(np.median(known))):
        return None
    rows = list(range(len(window.ranks)))[:_RANKS]
    starts = group_starts(len(window.steps), _POINTS)
    lowest = np.fmin.reduceat(values, starts, axis=1)
    return {
        "title": title,
        "ranks": [window.ranks[row] for row in rows],
        "values": [_rounded(lowest[row]) for row in rows],
    }


def _rounded(values: Column) -> list[Any]:
    return [None if value != value else round(value, 3) for value in values.tolist()]
