"""Two exact tests whose false alarms are known whatever the distribution: steps in, probabilities or thresholds out.

Both ask whether the last `recent` steps look like the `reference` steps before them. If nothing has changed, any order
of all these steps is as likely as any other (they are exchangeable), and the probability of an alarm is at most the one
asked for, for step times of any distribution. Mann and Whitney (1947), Fisher (1935).
"""

import bisect
import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


@cache
def u_threshold(recent: int, reference: int, alpha: float) -> float:
    """Return the least U of the Mann-Whitney test with P(U >= it) <= `alpha` when nothing has changed; inf: none."""
    counts = _u_counts(recent, reference)
    limit = alpha * math.comb(recent + reference, recent)
    tail = 0
    for u in range(len(counts) - 1, -1, -1):
        tail += counts[u]
        if tail > limit:
            return u + 1.0 if u + 1 < len(counts) else math.inf
    return 0.0


def _u_counts(recent: int, reference: int) -> list[int]:
    """Return how many orders of the steps give each U: the coefficients of the Gaussian binomial."""
    top = recent * reference
    counts = [1] + [0] * top
    for part in range(1, recent + 1):
        for u in range(top, reference + part - 1, -1):  # times 1 - q^(reference + part)
            counts[u] -= counts[u - reference - part]
        for u in range(part, top + 1):  # divided by 1 - q^part
            counts[u] += counts[u - part]
    return counts


def u_statistic(recent: Values, reference: Values) -> float:
    """Return U: the pairs in which the recent step is longer, equal ones counted half."""
    ordered = np.sort(reference).tolist()
    return sum((bisect.bisect_left(ordered, x) + bisect.bisect_right(ordered, x)) / 2 for x in recent.tolist())


def fisher(recent_hits: int, recent: int, reference_hits: int, reference: int) -> float:
    """Return the probability that the recent steps hold `recent_hits` or more of all hits when nothing has changed."""
    hits = recent_hits + reference_hits
    whole = math.comb(recent + reference, hits)
    ways = (math.comb(recent, k) * math.comb(reference, hits - k) for k in range(recent_hits, min(recent, hits) + 1))
    return sum(ways) / whole
