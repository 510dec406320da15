"""The binomial test, which both the analysis and the Monitor use to tell a late rank from chance."""

import math


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
