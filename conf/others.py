"""What the others do, for each of several ranks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def median_of_others(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return for each row (a rank) the median of the other rows, column by column; at least two rows.

    Without one value, the sorted rest moves up by one place from there on, so one sort serves all ranks.
    A column with an unknown value (NaN) is unknown.
    """
    values = np.asarray(values, np.float64)
    order = np.sort(values, axis=0)
    place = np.argsort(np.argsort(values, axis=0, kind="stable"), axis=0)
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    lower, upper = (np.take_along_axis(order, at + (place <= at), axis=0) for at in (low, high))
    return np.where(np.isnan(values).any(axis=0), np.nan, (lower + upper) / 2)
