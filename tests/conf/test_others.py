"""The median of the others, for each of several ranks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

from rankscope.conf.others import median_of_others

SHAPES = some.tuples(some.integers(2, 9), some.integers(1, 4))


@given(arrays(np.float64, SHAPES, elements=some.integers(-5, 5).map(float)))
def test_it_is_the_median_without_the_own_row(values: np.ndarray) -> None:
    expected = [np.median(np.delete(values, rank, 0), axis=0) for rank in range(len(values))]
    assert np.array_equal(median_of_others(values), expected)
    assert np.array_equal(median_of_others(values[:, 0]), np.array(expected)[:, 0])


def test_a_column_with_an_unknown_value_is_unknown() -> None:
    assert np.isnan(median_of_others(np.array([[1.0, np.nan], [2.0, 3.0]]))).tolist() == [[False, True], [False, True]]
