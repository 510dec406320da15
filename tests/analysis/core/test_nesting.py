"""Nesting by columns against the definition: a stack per thread, and a search through all rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.core import nesting

ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 12), st.integers(0, 3)), max_size=40)


def _ordered(rows: list[tuple[int, int, int, int]]) -> list[np.ndarray]:
    thread, start, took, name = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    order = nesting.order(thread, start, start + took)
    return [column[order] for column in (thread, start, start + took, name)]


def _by_stack(thread: list[int], start: list[int], end: list[int]) -> list[int]:
    parent: list[int] = []
    stacks: dict[int, list[int]] = {}
    for row, (on, begin) in enumerate(zip(thread, start, strict=True)):
        stack = stacks.setdefault(on, [])
        while stack and end[stack[-1]] <= begin:
            stack.pop()
        parent.append(stack[-1] if stack else -1)
        stack.append(row)
    return parent


@given(ROWS.filter(bool))
def test_order_parents_sums_and_repeats(rows: list[tuple[int, int, int, int]]) -> None:
    thread, start, end, name = _ordered(rows)
    keys = list(zip(thread.tolist(), start.tolist(), (-end).tolist(), strict=True))
    assert keys == sorted(keys)
    parent = nesting.parents(thread, start, end)
    assert parent.tolist() == _by_stack(thread.tolist(), start.tolist(), end.tolist())
    above: list[list[int]] = [[] for _ in parent]
    for row, over in enumerate(parent.tolist()):
        above[row] = [] if over < 0 else [over, *above[over]]
    depth = nesting.depths(parent)
    assert depth.tolist() == [len(each) for each in above]
    values = np.arange(1, len(parent) + 1)
    expected = values.copy()
    for row, over in enumerate(above):
        expected[over] += values[row]
    assert nesting.with_nested(values, parent, depth).tolist() == expected.tolist()
    nested = nesting.with_nested(np.ones(len(parent), np.int64), parent, depth) - 1
    repeated = [any(name[over] == name[row] for over in each) for row, each in enumerate(above)]
    assert nesting.inside_same(name, nested).tolist() == repeated


@given(ROWS.filter(bool), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 35)), max_size=10))
def test_what_runs_at_a_time_is_the_last_row_that_began_and_has_not_ended(
    rows: list[tuple[int, int, int, int]], asked: list[tuple[int, int]]
) -> None:
    thread, start, end, _ = _ordered(rows)
    parent = nesting.parents(thread, start, end)
    on, times = (np.array([pair[at] for pair in asked], np.int64) for at in (0, 1))
    found = nesting.running_at(times, on, threads=thread, start=start, end=end, parent=parent)
    for place, each, time in zip(found.tolist(), on.tolist(), times.tolist(), strict=True):
        running = np.flatnonzero((thread == each) & (start <= time) & (time < end))
        assert place == (running[-1] if len(running) else -1)
