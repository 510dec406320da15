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
_VARIES = 0.02  # a clock or power that varies by less is not drawn
_GAUGES = (("gpu_clock_mhz", "SM clock, MHz"), ("gpu_power_w", "power, W"), ("gpu_temperature_c", "temperature, C"))


def curve(analysis: Analysis, summary: Json, name: str = "") -> Json | None:
    """Return the curve of the plain window, otherwise of the traced steps; None if no step was recorded.

    `name` is that of the run, if there are several curves.
    """
    window = analysis.without.window
    found = _traced(analysis, summary) if window is None else _plain(window, summary)
    return None if found is None else found | {"name": name}


def _plain(window: Window, summary: Json) -> Json:
    rate, slow = summary["throughput"] or {}, summary["slow_steps"] or {}
    gauges = [(title, window.columns[name]) for name, title in _GAUGES if name in window.columns]
    times = window.step_ns * 1e-6
    found = _lines(window.ranks, window.steps, times, _named(window.ranks, times, summary), window.counted)
    return found | {
        "profiler": None,
        "counted": [window.steps[row] for row in np.flatnonzero(window.counted)[[0, -1]]]
        if window.counted.any()
        else None,
        "marks": {name: rate.get(f"step_ms_{name}") for name in ("mean", "p50", "p95")},
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
    of_job = np.nanmedian(times, axis=0)
    marks = {"mean": float(of_job.mean()), "p50": float(np.median(of_job)), "p95": None}
    return found | {"profiler": analysis.profiler, "counted": None, "marks": marks, "slow": [], "gauges": []}


def _named(ranks: Sequence[int], times: Matrix, summary: Json) -> list[int]:
    """Return the rows that get a line: all, or of many the late ranks, the slowest and the fastest."""
    if len(ranks) <= _RANKS:
        return list(range(len(ranks)))
    late = [row for row, rank in enumerate(ranks) if rank in summary["stragglers"]["ranks"]][: _RANKS // 2]
    order = np.argsort(np.nan_to_num(np.nanmedian(times, axis=1))).tolist()
    found = dict.fromkeys([*late, *reversed(order[-2:]), order[0], *range(len(ranks))])
    return sorted(list(found)[:_RANKS])


def _lines(ranks: Sequence[int], steps: Sequence[int], times: Matrix, named: Sequence[int], counted: Column) -> Json:
    """Return the lines of the named ranks, and the lowest, median and highest time of all ranks if there are more.

    Their numbers are those of the `counted` steps.
    """
    starts = np.unique(np.linspace(0, len(steps), min(_POINTS, len(steps)) + 1).astype(int))[:-1]
    grouped = np.fmax.reduceat(times, starts, axis=1)
    found: Json = {
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
        low, middle, high = (_rounded(part) for part in np.nanpercentile(grouped, [0, 50, 100], axis=0))
        found["range"] = {"low": low, "median": middle, "high": high}
    return found


def _numbers(rank: int, times: Column) -> Json:
    known = times[~np.isnan(times)]
    if not len(known):
        return {"rank": rank, "mean": None, "p50": None, "p95": None, "max": None}
    p95 = float(np.percentile(known, 95)) if len(known) >= 20 else None
    return {
        "rank": rank,
        "mean": float(known.mean()),
        "p50": float(np.median(known)),
        "p95": p95,
        "max": float(known.max()),
    }


def _gauge(title: str, window: Window, values: Matrix) -> Json | None:
    """Return a gauge by rank and step; None if it hardly varies."""
    known = values[~np.isnan(values)]
    if not len(known) or known.max() - known.min() < _VARIES * max(1.0, float(np.median(known))):
        return None
    rows = list(range(len(window.ranks)))[:_RANKS]
    starts = np.unique(np.linspace(0, len(window.steps), min(_POINTS, len(window.steps)) + 1).astype(int))[:-1]
    lowest = np.fmin.reduceat(values, starts, axis=1)
    return {
        "title": title,
        "ranks": [window.ranks[row] for row in rows],
        "values": [_rounded(lowest[row]) for row in rows],
    }


def _rounded(values: Column) -> list[Any]:
    return [None if value != value else round(value, 3) for value in values.tolist()]
