"""Whether what was seen may be chance: tests over steps, in plain numpy."""

import numpy as np

from rankscope.analysis.core.table import Column
from rankscope.conf.chance import binomial_tail


def median_interval(values: Column, level: float = 0.95) -> tuple[float, float] | None:
    """Return a confidence interval of the median by order statistics, which assumes no distribution; None if too few.

    Source: the number of values below the median is Binomial(n, 1/2).
    """
    ordered = np.sort(np.asarray(values, float))
    n = len(ordered)
    for low in range(n // 2, 0, -1):  # from the narrowest interval outwards
        inside = 1 - 2 * binomial_tail(n - low + 1, n, 0.5)
        if inside >= level:
            return float(ordered[low - 1]), float(ordered[n - low])
    return None
