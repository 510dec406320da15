"""Two exact tests with a known false-alarm rate for any distribution: steps in, probabilities or thresholds out.

Both test whether the last `recent` steps look like the `reference` steps before them. If nothing has changed, every
order of these steps has the same probability (they are exchangeable). Then the probability of an alarm is at most the
requested one, for step times of any distribution. Mann and Whitney (1947), Fisher (1935).
"""

import bisect
import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


@cache
def u_threshold(recent: int, reference: int, alpha: float) -> float:
    """Return the smallest u with P(U >= u) <= `alpha` in the Mann-Whitney test if nothing has changed; inf if none."""
    counts = _u_counts(recent, reference)
    limit = alpha * math.comb(recent + reference, recent)
    tail = 0
    for u in range(len(counts) - 1, -1, -1):
        tail += counts[u]
        if tail > limit:
            return u + 1.0 if u + 1 < len(counts) else math.inf
    return 0.0


def _u_counts(recent: int, reference: int) -> list[int]:
    """Return the number of orders of the steps for each U: the coefficients of the Gaussian binomial."""
    top = recent * reference
    counts = [1] + [0] * top
    for part in range(1, recent + 1):
        for u in range(top, reference + part - 1, -1):  # times 1 - q^(reference + part)
            counts[u] -= counts[u - reference - part]
        for u in range(part, top + 1):  # divided by 1 - q^part
            counts[u] += counts[u - part]
    return counts


def u_statistic(recent: Values, reference: Values) -> float:
    """Return U: the number of pairs in which the recent step is longer; equal steps count half."""
    ordered = np.sort(reference).tolist()
    return sum((bisect.bisect_left(ordered, x) + bisect.bisect_right(ordered, x)) / 2 for x in recent.tolist())


def fisher(recent_hits: int, recent: int, reference_hits: int, reference: int) -> float:
    """Return the probability that the recent steps have `recent_hits` or more of all hits if nothing has changed."""
    hits = recent_hits + reference_hits
    whole = math.comb(recent + reference, hits)
    ways = (math.comb(recent, k) * math.comb(reference, hits - k) for k in range(recent_hits, min(recent, hits) + 1))
    return sum(ways) / whole
