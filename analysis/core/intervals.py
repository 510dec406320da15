"""Operations on half-open integer intervals [start, end) in nanoseconds.

A *set* is an int64 array of shape (2, n): starts and ends, sorted, disjoint and not touching. Union, intersection
and difference return sets. Lengths are those of sets, so overlapping time counts once.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Intervals = NDArray[np.int64]

EMPTY: Intervals = np.zeros((2, 0), np.int64)


def union(start: NDArray[Any], end: NDArray[Any]) -> Intervals:
    """Merge intervals given in any order; those of zero length vanish.

    Starts and ends are sorted separately. There is a gap before the i-th start exactly if the i-th smallest end is
    smaller, because then all i earlier intervals have ended. So no argsort is needed.
    """
    real = end > start
    if not real.any():
        return EMPTY
    s, e = np.sort(start[real], kind="stable"), np.sort(end[real], kind="stable")  # fast if almost in order
    first = np.empty(len(s), bool)
    first[0] = True
    np.less(e[:-1], s[1:], out=first[1:])
    last = np.append(first[1:], True)
    return np.stack([s[first], e[last]])


def either(*sets: Intervals) -> Intervals:
    filled = [each for each in sets if each.shape[1]]
    if len(filled) <= 1:
        return filled[0] if filled else EMPTY
    together = np.concatenate(filled, axis=1)
    return union(together[0], together[1])


def both(a: Intervals, b: Intervals) -> Intervals:
    """Return the time that is in both sets.

    A part begins where one set begins inside the other, and ends where one ends inside the other. If both begin (or
    end) at the same time, that is one beginning (or end).
    """
    if not a.shape[1] or not b.shape[1]:
        return EMPTY
    begins = b[0][covers(a, b[0])]
    begins = _merged(a[0][covers(b, a[0])], begins[~_among(begins, a[0])])
    ends = b[1][_covers_before(a, b[1])]
    ends = _merged(a[1][_covers_before(b, a[1])], ends[~_among(ends, a[1])])
    return np.stack([begins, ends])


def minus(a: Intervals, b: Intervals) -> Intervals:
    """Return the part of `a` that is not in `b`."""
    if not a.shape[1] or not b.shape[1]:
        return a
    low, high = min(a[0, 0], b[0, 0]) - 1, max(a[1, -1], b[1, -1]) + 1
    return both(a, np.stack([np.append(low, b[1]), np.append(b[0], high)]))


def _merged(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.sort(np.concatenate([a, b]), kind="stable")  # two sorted columns: one pass


def _among(points: NDArray[np.int64], of: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which points are values of a sorted column, which is not empty."""
    found: NDArray[np.bool_] = of[np.minimum(np.searchsorted(of, points), len(of) - 1)] == points
    return found


def _covers_before(a: Intervals, points: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each point whether the time directly before it is inside an interval of `a`."""
    index = np.searchsorted(a[0], points, "left") - 1
    inside: NDArray[np.bool_] = (index >= 0) & (points <= a[1][index])
    return inside


def covers(a: Intervals, points: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each point whether it is inside an interval of `a`."""
    if not a.shape[1]:
        return np.zeros(len(points), bool)
    index = np.searchsorted(a[0], points, "right") - 1
    inside: NDArray[np.bool_] = (index >= 0) & (points < a[1][index])
    return inside


def length(a: Intervals) -> int:
    """Return the total length of a set (ns)."""
    return int((a[1] - a[0]).sum())


def measure(a: Intervals, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the length of `a` inside each window [start, end) (ns). Windows may overlap."""
    if not a.shape[1]:
        return np.zeros(len(start), np.int64)
    below = _below(a, np.concatenate([start, end]))
    return below[len(start) :] - below[: len(start)]


def _below(a: Intervals, points: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the length of `a` below each point: complete intervals, plus part of the interval around the point."""
    done = np.concatenate([[0], np.cumsum(a[1] - a[0])])
    index = np.searchsorted(a[0], points, "right")
    last = np.maximum(index - 1, 0)
    beyond = np.where(index > 0, np.maximum(a[1][last] - points, 0), 0)
    below: NDArray[np.int64] = done[index] - beyond
    return below
