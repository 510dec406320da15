"""What the others do, for each of several ranks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def median_of_others(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return for each row (a rank) the median of the other rows, column by column; at least two rows.

    Without one value, the sorted rest moves up by one place from there on, so one sort serves all ranks.
    """
    values = np.asarray(values, np.float64)
    order = np.sort(values, axis=0)
    place = np.argsort(np.argsort(values, axis=0, kind="stable"), axis=0)
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    lower, upper = (np.take_along_axis(order, at + (place <= at), axis=0) for at in (low, high))
    found: NDArray[np.float64] = (lower + upper) / 2
    found[np.isnan(values).any(axis=0) & np.ones(found.shape, bool)] = np.nan
    return found
