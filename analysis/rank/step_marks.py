"""Finds the steps of a trace that has no ProfilerStep marks, or those that the user named.

Input: a `RankTrace`. Output: the same with an annotation `ProfilerStep#N` for each step, so that all later stages know
only these. A range that lasts a step becomes one. Between marks that come once a step, such as the optimizer's, each
interval becomes one; what lies before the first and after the last mark belongs to no step, because it may be cut.
"""

import re
from collections.abc import Sequence

import msgspec
import numpy as np

from rankscope.analysis.core.notices import Notice
from rankscope.analysis.core.step_names import MARKS, RANGES, Mark
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.rank.steps import STEP, disjoint, marks_steps
from rankscope.analysis.read.rank_trace import CODED, HOST_COLUMNS, RankTrace, end_of

_DIGITS = 17  # of a number in a name; a longer one is not the number of a step
_OF_THE_TIME = 0.5  # share of the time that ranges cover below which they are marks
_LISTED = 6


def with_steps(trace: RankTrace, pattern: str | None) -> RankTrace:
    """Return the trace with steps; unchanged if it has ProfilerStep marks, or nothing else that shows steps.

    `pattern` is the name of the user's ranges, or a regular expression for it. It overrules ProfilerStep.
    """
    if pattern is not None and trace.source == "kineto":
        return _named_by_user(trace, pattern)
    if marks_steps(trace.host):
        return trace
    for expression in RANGES:
        rows = _rows(trace.host, expression, annotations_only=True)
        if len(rows):
            return _with_ranges(trace, rows, expression)
    for mark in MARKS:
        rows = _one_a_step(trace.host, _rows(trace.host, mark.pattern))
        if len(rows) > 1:
            return _between(trace, rows, mark)
    return trace


def _named_by_user(trace: RankTrace, pattern: str) -> RankTrace:
    own = trace.host.where("name", lambda word: STEP.match(word) is not None)
    expression = re.compile(f"(?:{re.escape(pattern)})|(?:{pattern})")
    if any(expression.fullmatch(word) and STEP.match(word) for word in trace.host.words["name"]):
        return trace
    bare = msgspec.structs.replace(trace, host=trace.host.take(~own))
    rows = _rows(bare.host, expression)
    if not len(rows):
        notes = bare.host.take(bare.host["annotation"] == 1)
        some = ", ".join(sorted({name for name in notes.texts("name") if name})[:_LISTED]) or "none"
        text = f"{trace.files[0]}: no annotation is named {pattern!r}; there are: {some}"
        notice = Notice(kind="no_such_range", rank=trace.rank, file=trace.files[0], message=text)
        return msgspec.structs.replace(bare, notices=[*trace.notices, notice])
    known = next((mark for mark in MARKS if mark.pattern.fullmatch(_name(bare.host, rows[0]))), None)
    starts, ends = bare.host["start"][rows], end_of(bare.host)[rows]
    short = len(rows) > 1 and (ends - starts).sum() < _OF_THE_TIME * (ends.max() - starts.min())
    if known is not None or short:
        mark = known or Mark(pattern=expression, at="start", says=f"the ranges {pattern!r}")
        return _between(bare, rows, mark)
    return _with_ranges(bare, rows, expression)


def _name(host: Table, row: int) -> str:
    name: str = host.words["name"][host["name"][row]]
    return name


def _rows(host: Table, expression: re.Pattern[str], *, annotations_only: bool = False) -> Column:
    """Return the rows whose name matches, in order of time, on the thread that has most of them."""
    chosen = host.where("name", lambda word: expression.fullmatch(word) is not None)
    chosen &= (host["start"] != UNKNOWN) & (host["duration"] >= 0)
    if annotations_only:
        chosen &= host["annotation"] == 1
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return rows
    threads, counts = np.unique(host["thread"][rows], return_counts=True)
    rows = rows[host["thread"][rows] == threads[np.argmax(counts)]]
    return np.asarray(rows[np.argsort(host["start"][rows], kind="stable")])


def _one_a_step(host: Table, rows: Column) -> Column:
    """Return the marks of one name: a job with two optimizers or loaders marks each step twice.

    The name that comes least often is taken, because a step has all of them at least once; among equals the first.
    """
    if not len(rows):
        return rows
    names, first, counts = np.unique(host["name"][rows], return_index=True, return_counts=True)
    several = counts > 1
    if not several.any():
        return rows[:0]
    best = min(np.flatnonzero(several).tolist(), key=lambda index: (counts[index], first[index]))
    return np.asarray(rows[host["name"][rows] == names[best]])


def _with_ranges(trace: RankTrace, rows: Column, expression: re.Pattern[str]) -> RankTrace:
    host = trace.host
    start, end = host["start"][rows], end_of(host)[rows]
    outer = disjoint(start, end)
    rows, start, end = rows[outer], start[outer], end[outer]
    numbers = _numbers([_name(host, row) for row in rows.tolist()], expression)
    names = sorted({re.sub(r"\d+", "N", _name(host, row)) for row in rows.tolist()})
    says = f"the ranges {names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    return _added(trace, start, end, numbers, int(rows[0]), says)


def _numbers(names: Sequence[str], expression: re.Pattern[str]) -> Column:
    """Return the number in each name; if one has none, count from 0."""
    found = []
    for name in names:
        match = expression.fullmatch(name)
        groups = match.groups() if match else ()
        digits = next((text for text in groups if text and text.isdecimal() and len(text) <= _DIGITS), None)
        if digits is None:
            return np.arange(len(names))
        found.append(int(digits))
    return np.array(found, np.int64)


def _between(trace: RankTrace, rows: Column, mark: Mark) -> RankTrace:
    host = trace.host
    times = host["start"][rows] if mark.at == "start" else end_of(host)[rows]
    numbers = np.arange(len(rows) - 1) + (1 if mark.at == "end" else 0)
    return _added(trace, times[:-1], times[1:], numbers, int(rows[0]), mark.says)


def _added(trace: RankTrace, start: Column, end: Column, numbers: Column, like: int, says: str) -> RankTrace:
    """Return the trace with an annotation for each step on the thread of the row `like`, and a notice."""
    host = trace.host
    words = host.words["name"]
    names = [f"ProfilerStep#{number}" for number in numbers.tolist()]
    count = len(names)
    columns: dict[str, Column] = {
        name: np.full(count, -1, np.int32) if name in CODED else np.full(count, UNKNOWN) for name in HOST_COLUMNS
    }
    columns |= {
        "start": start,
        "duration": end - start,
        "name": np.arange(count, dtype=np.int32) + len(words),
        "thread": np.full(count, host["thread"][like]),
        "annotation": np.ones(count, np.int64),
    }
    columns |= {name: np.full(count, UNKNOWN) for name in host.columns if name not in columns}
    joined = {name: np.concatenate([host[name], columns[name]]) for name in host.columns}
    text = f"{trace.files[0]}: no ProfilerStep marks: steps are {says}; --steps-from names others"
    notice = Notice(kind="steps_found", level="info", rank=trace.rank, file=trace.files[0], message=text)
    return msgspec.structs.replace(
        trace,
        host=Table(joined, {**host.words, "name": [*words, *names]}),
        notices=[*trace.notices, notice],
    )
