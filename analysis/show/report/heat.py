"""Ranks against steps as a heat map: lateness and parts of the traced steps, and the steps without a profiler.

Input: the `Analysis`. Output: plain values for `heat.js`: per measure a matrix of ms, ranks x steps.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankscope.analysis.core.json import Json
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.job.window import Matrix
from rankscope.analysis.measure.breakdown import PARTS
from rankscope.analysis.result import Analysis
from rankscope.analysis.show.report.curve import group_starts
from rankscope.analysis.show.timeline.sentences import TITLES

_CELLS = 60_000  # of one measure; of more steps the longest of each group is kept
_NUMBERED = 64  # ranks in the table of numbers: those that are latest


def heat(analysis: Analysis) -> Json | None:
    """Return the measures by rank and step; None with one rank or without steps."""
    if analysis.world_size < 2:
        return None
    measures = [*_traced(analysis), *_plain(analysis)]
    return {"measures": measures} if measures else None


def _traced(analysis: Analysis) -> list[Json]:
    """Return lateness, step and parts of every traced step."""
    table, late = analysis.analysed_steps, analysis.late_table
    late = late.take(np.isin(late["step"], analysis.steps_analysed))
    found = []
    if len(late):
        found.append(
            _measure("late", "Lateness at collectives", late, late["lateness_ns"], judged=analysis.steps_judged)
        )
    if len(table):
        found.append(_measure("step", "Step under the profiler", table, table["step_ns"]))
        found += [_measure(name, TITLES[name].capitalize(), table, table[f"{name}_ns"]) for name in PARTS]
    return [item for item in found if any(value for row in item["ms"] for value in row)]


def _measure(key: str, title: str, table: Table, values: Column, judged: Sequence[int] | None = None) -> Json:
    ranks, steps = np.unique(table["rank"]), np.unique(table["step"])
    matrix = np.full((len(ranks), len(steps)), np.nan)
    known = np.where(values == UNKNOWN, np.nan, values * 1e-6)
    matrix[np.searchsorted(ranks, table["rank"]), np.searchsorted(steps, table["step"])] = known
    return _entry(key, title, ranks.tolist(), steps.tolist(), matrix) | {"judged": judged, "traced": True}


def _plain(analysis: Analysis) -> list[Json]:
    """Return the steps without a profiler, and what a rank computes in its backward pass."""
    window = analysis.without.window
    if window is None or len(window.ranks) < 2 or not window.counted.any():
        return []
    window = window.only(window.counted)
    found = [_entry("plain", "Step without a profiler", window.ranks, window.steps, window.step_ns * 1e-6)]
    waits = window.part("data_wait") * 1e-6
    if waits.any():
        found.append(_entry("plain_wait", "Wait for the loader, without a profiler", window.ranks, window.steps, waits))
    return [item | {"judged": None, "traced": False} for item in found]


def _entry(key: str, title: str, ranks: Sequence[int], steps: Sequence[int], matrix: Matrix) -> Json:
    most = max(4, _CELLS // len(ranks))
    starts = group_starts(len(steps), most)
    grouped = np.fmax.reduceat(matrix, starts, axis=1)
    values: list[list[Any]] = [[None if v != v else round(v, 3) for v in row] for row in grouped.tolist()]
    kept = [steps[at] for at in starts]
    return {
        "key": key,
        "title": title,
        "ranks": list(ranks),
        "steps": kept,
        "ms": values,
        "grouped": len(kept) < len(steps),
    }


def in_numbers(found: Json | None) -> Json | None:
    """Return the lateness (otherwise the first measure) of the ranks that are highest, for the table."""
    if found is None:
        return None
    measure = found["measures"][0]
    if len(measure["steps"]) > _NUMBERED:
        return None
    highest = [max((value for value in row if value is not None), default=0.0) for row in measure["ms"]]
    chosen = sorted(sorted(range(len(highest)), key=lambda row: -highest[row])[:_NUMBERED])
    judged = measure["judged"]
    return {
        "title": measure["title"],
        "steps": [(step, judged is None or step in judged) for step in measure["steps"]],
        "rows": [(measure["ranks"][row], measure["ms"][row]) for row in chosen],
        "left_out": len(highest) - len(chosen),
    }
