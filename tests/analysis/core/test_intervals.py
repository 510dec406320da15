"""Interval algebra against brute force: sets of integers, one element a nanosecond."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.core.intervals import both, covers, either, length, measure, minus, union

LIMIT = 60
Pairs = list[tuple[int, int]]
pairs = st.lists(st.tuples(st.integers(0, LIMIT), st.integers(0, LIMIT)), max_size=12)


def points(intervals: Pairs) -> set[int]:
    return {point for start, end in intervals for point in range(start, end)}


def merged(intervals: Pairs) -> np.ndarray:
    table = np.array(intervals, np.int64).reshape(-1, 2)
    return union(table[:, 0], table[:, 1])


def as_points(intervals: np.ndarray) -> set[int]:
    return points([(int(start), int(end)) for start, end in intervals.T])


@given(pairs, pairs)
def test_set_operations(a: Pairs, b: Pairs) -> None:
    x, y = merged(a), merged(b)
    assert as_points(x) == points(a)
    assert as_points(either(x, y)) == points(a) | points(b)
    assert as_points(both(x, y)) == points(a) & points(b)
    assert as_points(minus(x, y)) == points(a) - points(b)
    assert length(x) == len(points(a))


@given(pairs)
def test_a_set_is_sorted_disjoint_and_not_touching(a: Pairs) -> None:
    start, end = merged(a)
    assert (start < end).all() and (end[:-1] < start[1:]).all()


@given(pairs, st.integers(0, LIMIT), st.integers(0, LIMIT))
def test_windows(a: Pairs, low: int, high: int) -> None:
    low, high = min(low, high), max(low, high)
    inside = points(a) & set(range(low, high))
    assert measure(merged(a), np.array([low]), np.array([high])).tolist() == [len(inside)]


@given(pairs, st.lists(st.integers(0, LIMIT), max_size=8))
def test_covers(a: Pairs, at: list[int]) -> None:
    assert covers(merged(a), np.array(at, np.int64)).tolist() == [point in points(a) for point in at]
