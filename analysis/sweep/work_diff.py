"""Which kernels, operators and collectives are new, gone, slower or more frequent in B than in A.

Input: two measured recordings. Output: rows per name, ms per step and rank, on the analysed steps of the ranks that
both have. A row is noise if the difference of its means is within three standard errors over ranks and steps: three,
because many names are compared.
"""

from typing import Literal

import msgspec
import numpy as np

from rankscope.analysis.core import group_by, nesting
from rankscope.analysis.core.collective_kinds import UNKNOWN_KIND
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.record_kinds import COMMUNICATION
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.measure.recording import Recording
from rankscope.analysis.rank.rank_data import RankData
from rankscope.analysis.rank.steps import step_at
from rankscope.analysis.read.rank_trace import end_of
from rankscope.analysis.show.words import byte_size

_ERRORS = 3.0
_LEAST = 0.001  # of A's step: a smaller difference is not worth a row
_MORE_OFTEN = 0.02
_NS_PER_MS = 1e6
Kind = Literal["kernel", "operator", "collective"]
Key = tuple[Kind, str]
How = Literal["new", "gone", "more often", "less often", "slower", "faster"]


class WorkChange(msgspec.Struct, frozen=True, kw_only=True):
    """One name in A and in B; calls and ms per step and rank (operators: without what is nested in them)."""

    kind: Kind
    name: str
    how: How
    a_calls: float
    b_calls: float
    a_ms: float
    b_ms: float
    low_ms: float  # of the difference
    high_ms: float
    is_noise: bool


class _Sums:
    """Calls and time (ns) by name, a value for each rank and step."""

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self.calls: dict[Key, Column] = {}
        self.ns: dict[Key, Column] = {}

    def add(self, kind: Kind, names: list[str], code: Column, cell: Column, took: Column) -> None:
        """Add rows: the name of each by its code, the rank and step by its cell."""
        used, at = np.unique(code, return_inverse=True)
        flat = at.ravel() * self.cells + cell
        shape = (len(used), self.cells)
        calls = np.bincount(flat, minlength=shape[0] * shape[1]).reshape(shape)
        ns = np.bincount(flat, took, shape[0] * shape[1]).reshape(shape)
        for row, number in enumerate(used.tolist()):
            key: Key = (kind, names[number])
            self.calls[key] = self.calls.get(key, 0) + calls[row]
            self.ns[key] = self.ns.get(key, 0) + ns[row]


def work_diff(a: Recording, b: Recording) -> list[WorkChange]:
    """Return what differs, the largest difference first; `AnalysisError` if the two share no rank with steps."""
    ranks = sorted({data.rank for data in a.ranks} & {data.rank for data in b.ranks})
    if not ranks or not a.steps_analysed or not b.steps_analysed:
        raise AnalysisError(
            "the two recordings have no rank with traced steps in common, so their work is not compared"
        )
    before, after = _sums(a, ranks), _sums(b, ranks)
    least = _LEAST * float(a.analysed_steps["step_ns"].mean())
    found = []
    for key in before.calls.keys() | after.calls.keys():
        change = _change(key, before, after)
        if abs(change.b_ms - change.a_ms) * _NS_PER_MS >= least:
            found.append(change)
    return sorted(found, key=lambda row: (row.is_noise, -abs(row.b_ms - row.a_ms), row.name))


def _change(key: Key, before: _Sums, after: _Sums) -> WorkChange:
    none_before, none_after = np.zeros(before.cells), np.zeros(after.cells)
    a_ns, b_ns = before.ns.get(key, none_before), after.ns.get(key, none_after)
    a_calls = float(np.mean(before.calls.get(key, none_before)))
    b_calls = float(np.mean(after.calls.get(key, none_after)))
    difference = float(np.mean(b_ns) - np.mean(a_ns))
    error = _ERRORS * float(np.sqrt(_squared_error(a_ns) + _squared_error(b_ns)))
    return WorkChange(
        kind=key[0],
        name=key[1],
        how=_how(a_calls, b_calls, difference),
        a_calls=a_calls,
        b_calls=b_calls,
        a_ms=float(np.mean(a_ns)) / _NS_PER_MS,
        b_ms=float(np.mean(b_ns)) / _NS_PER_MS,
        low_ms=(difference - error) / _NS_PER_MS,
        high_ms=(difference + error) / _NS_PER_MS,
        is_noise=abs(difference) <= error,
    )


def _squared_error(values: Column) -> float:
    return float(np.var(values, ddof=1) / len(values)) if len(values) > 1 else float(np.mean(values)) ** 2


def _how(a_calls: float, b_calls: float, difference: float) -> How:
    if not a_calls or not b_calls:
        return "gone" if a_calls else "new"
    if abs(b_calls / a_calls - 1) > _MORE_OFTEN:
        return "more often" if b_calls > a_calls else "less often"
    return "slower" if difference > 0 else "faster"


def _sums(recording: Recording, ranks: list[int]) -> _Sums:
    steps = np.array(recording.steps_analysed)
    found = _Sums(len(ranks) * len(steps))
    for data in recording.ranks:
        if data.rank not in ranks:
            continue
        first = ranks.index(data.rank) * len(steps)
        if data.mode == "device":
            _add_kernels(found, data, steps, first)
        _add_operators(found, data, steps, first)
    _add_collectives(found, recording, ranks, steps)
    return found


def _add_kernels(found: _Sums, data: RankData, steps: Column, first: int) -> None:
    table = data.kernels
    at = group_by.of_keys(table["step"], steps)
    rows = np.flatnonzero((at >= 0) & (table["role"] != COMMUNICATION) & (table["name"] >= 0))
    took = (table["end"] - table["start"])[rows]
    found.add("kernel", table.words["name"], table["name"][rows], first + at[rows], took)


def _add_operators(found: _Sums, data: RankData, steps: Column, first: int) -> None:
    """Add the operators on the host, each without the time of what is nested in it."""
    host = data.host
    at = group_by.of_keys(step_at(host["start"], data.steps.sort("host_start")), steps)
    rows = np.flatnonzero((at >= 0) & (host["duration"] >= 0) & (host["annotation"] == 0) & (host["name"] >= 0))
    rows = rows[nesting.order(host["thread"][rows], host["start"][rows], end_of(host)[rows])]
    parent = nesting.parents(host["thread"][rows], host["start"][rows], end_of(host)[rows])
    took = host["duration"][rows].astype(float)
    own, nested = took.copy(), parent >= 0
    np.subtract.at(own, parent[nested], took[nested])
    found.add("operator", host.words["name"], host["name"][rows], first + at[rows], np.maximum(own, 0))


def _add_collectives(found: _Sums, recording: Recording, ranks: list[int], steps: Column) -> None:
    """Add the collectives by kind and size: their transfer, or if it is unknown, all of their time."""
    calls = recording.calls
    at, rank = group_by.of_keys(calls["step"], steps), group_by.of_keys(calls["rank"], np.array(ranks))
    rows = np.flatnonzero((at >= 0) & (rank >= 0)) if len(calls) else np.zeros(0, np.int64)
    if not len(rows):
        return
    table: Table = calls.take(rows)
    took = np.where(table["transfer_ns"] == UNKNOWN, table["end"] - table["start"], table["transfer_ns"])
    sizes = zip(table.texts("kind"), table["bytes"].tolist(), strict=True)
    names = [f"{kind or UNKNOWN_KIND}, {'? B' if size == UNKNOWN else byte_size(size)}" for kind, size in sizes]
    words = list(dict.fromkeys(names))
    code = np.array([words.index(name) for name in names])
    found.add("collective", words, code, (rank[rows] * len(steps) + at[rows]), took)
