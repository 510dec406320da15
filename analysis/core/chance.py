"""Whether what was seen may be chance: tests over steps, in plain numpy."""

import numpy as np

from rankscope.analysis.core.table import Column
from rankscope.conf.chance import binomial_tail


def independent_share(series: Column) -> float:
    """Return the share of values that count as independent: (1 - r) / (1 + r) for the lag-1 autocorrelation r.

    Source: the variance of the mean of an AR(1) process. A constant series has nothing that repeats: 1. A negative r
    counts as 0, so a series never counts as more values than it has.
    """
    deviation = np.asarray(series, float) - np.mean(series)
    variance = float(deviation @ deviation)
    if len(deviation) < 3 or variance == 0:
        return 1.0
    r = max(0.0, float(deviation[1:] @ deviation[:-1]) / variance)
    return (1 - r) / (1 + r)


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
