"""How many times as long as a plain step the step of another window is, and between which bounds."""

import numpy as np

from rankscope.analysis.core.chance import median_interval
from rankscope.analysis.core.table import Column

Interval = tuple[float, float]


def ratio_interval(steps: Column, plain: Column) -> Interval | None:
    """Return the interval of the ratio of two medians; None without steps.

    It goes from the lowest possible median over the highest possible one to the other extreme. A median's bounds are
    its 95 % interval by order statistics; with fewer than 6 steps, which have none, the shortest and the longest step.
    """
    if not len(steps) or not len(plain):
        return None
    (low, high), (plain_low, plain_high) = _bounds(steps), _bounds(plain)
    return (round(low / plain_high, 4), round(high / plain_low, 4)) if plain_low > 0 else None


def _bounds(values: Column) -> Interval:
    return median_interval(values) or (float(np.min(values)), float(np.max(values)))
