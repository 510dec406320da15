"""Reductions by group are what their definitions say, also if only a few rows are looked at at a time."""

import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.core import at_once, group_by

SMALL, LARGE = st.integers(-50, 50), st.integers(-(2**61), 2**61)
GROUPS = 4


@given(st.lists(st.tuples(st.integers(0, GROUPS - 1), st.one_of(SMALL, LARGE)), max_size=30), st.booleans())
def test_median(rows: list[tuple[int, int]], floats: bool) -> None:
    groups = np.array([group for group, _ in rows], np.int64)
    values: Any = np.array([value for _, value in rows], np.float64 if floats else np.int64)
    found = group_by.median(values, groups, GROUPS)
    assert found.dtype == values.dtype
    for group in range(GROUPS):
        own = values[groups == group].tolist()
        low, high = (statistics.median_low(own), statistics.median_high(own)) if own else (0, 0)
        assert found[group] == (low + (high - low) / 2 if floats else low + (high - low) // 2)


@pytest.mark.parametrize("rows_at_once", [3, 1 << 16])
@given(st.lists(st.tuples(st.sampled_from([7, 2, 5, 9]), SMALL), max_size=20))
def test_sums_by_key(rows_at_once: int, rows: list[tuple[int, int]]) -> None:
    keys = np.array([5, 2, 7])
    wanted, values = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(at_once, "ROWS", rows_at_once)
        at = group_by.of_keys(wanted, keys)
        sums = group_by.sums(values, at, len(keys))
    assert at.tolist() == [{5: 0, 2: 1, 7: 2}.get(key, -1) for key, _ in rows]
    assert sums.tolist() == [sum(value for key, value in rows if key == each) for each in keys.tolist()]
