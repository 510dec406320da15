"""How the analysis and the Monitor tell a late rank from chance: a binomial test over independent steps."""

import math

import numpy as np
from numpy.typing import ArrayLike


def binomial_tail(count: float, trials: float, share: float) -> float:
    """Return P(X >= count) for X ~ Binomial(trials, share); fractions of counts and trials are rounded down."""
    n, k = math.floor(trials), math.floor(count)
    if k <= 0:
        return 1.0
    if k > n:
        return 0.0
    log = math.lgamma(n + 1)
    terms = [
        log - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * math.log(share) + (n - i) * math.log1p(-share)
        for i in range(k, n + 1)
    ]
    top = max(terms)
    return min(1.0, math.exp(top) * sum(math.exp(term - top) for term in terms))


def independent_share(series: ArrayLike) -> float:
    """Return the share of values that count as independent: (1 - r) / (1 + r) for the lag-1 autocorrelation r.

    Source: the variance of the mean of an AR(1) process. A constant series has nothing that repeats: 1. A negative r
    counts as 0, so a series never counts as more values than it has.
    """
    values = np.asarray(series, float)
    deviation = values - values.mean()
    variance = float(deviation @ deviation)
    if len(deviation) < 3 or variance == 0:
        return 1.0
    r = max(0.0, float(deviation[1:] @ deviation[:-1]) / variance)
    return (1 - r) / (1 + r)
