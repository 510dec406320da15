"""Reductions by group on numpy columns: like `DataFrame.groupby`, but on integers and without pandas."""

import numpy as np

from rankscope.analysis.core import at_once
from rankscope.analysis.core.table import Column


def starts_of(groups: Column) -> Column:
    """Return the positions where a new group begins in a sorted column."""
    first = np.ones(len(groups), bool)
    first[1:] = groups[1:] != groups[:-1]
    return np.flatnonzero(first)


def positions(groups: Column) -> dict[int, Column]:
    """Return for each value of an integer column the rows that hold it, in order."""
    if not len(groups):
        return {}
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    begin = starts_of(ordered)
    return dict(zip(ordered[begin].tolist(), np.split(order, begin[1:]), strict=True))


def distinct(values: Column) -> Column:
    """Return the different values in order: as `np.unique`, but fast for long columns that are made of sorted parts."""
    ordered = np.sort(values, kind="stable")
    return ordered[starts_of(ordered)]


def among(values: Column, keys: Column) -> Column:
    """Return whether each value is one of the keys: as `np.isin`, but fast for keys that are almost in order."""
    if not len(keys):
        return np.zeros(len(values), bool)
    ordered = np.sort(keys, kind="stable")
    return np.asarray(ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values)


def of_keys(values: Column, keys: Column) -> Column:
    """Return for each value its position in `keys`, which are all different; -1 if it is not among them."""
    if not len(keys):
        return np.full(len(values), -1)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    result = np.empty(len(values), np.int64)
    for rows in at_once.pieces(len(values)):
        part = values[rows]
        at = order[np.minimum(np.searchsorted(ordered, part), len(keys) - 1)]
        result[rows] = np.where(keys[at] == part, at, -1)
    return result


def sums(values: Column, at: Column, count: int) -> Column:
    """Return the sum (int64) of the values at each position 0..count-1; values at -1 count nowhere."""
    total = np.zeros(count, np.int64)
    for rows in at_once.pieces(len(values)):
        known = at[rows] >= 0
        np.add.at(total, at[rows][known], values[rows][known])
    return total


def median(values: Column, groups: Column, count: int) -> Column:
    """Return the median of each group 0..count-1 in the values' own type (integers rounded down); 0 if empty."""
    result = np.zeros(count, values.dtype)
    if not len(values):
        return result
    ordered, ends, added = _by_group(values, groups, count)
    found = np.flatnonzero(np.diff(ends))
    begin, size, added = ends[found], np.diff(ends)[found], added[found]
    low, high = ordered[begin + (size - 1) // 2] - added, ordered[begin + size // 2] - added
    result[found] = low + (high - low) / 2 if values.dtype.kind == "f" else low + (high - low) // 2
    return result


def _by_group(values: Column, groups: Column, count: int) -> tuple[Column, Column, Column]:
    """Return (values sorted by group and value, bounds of the groups, what was added to the values of each group).

    Group i is at `bounds[i] : bounds[i + 1]`.
    """
    if values.dtype.kind == "i":
        least = int(values.min())
        span = int(values.max()) - least + 1
        if span * count <= np.iinfo(np.int64).max:  # one number for group and value: sorts faster, in less memory
            ordered = groups * np.int64(span)
            ordered += values
            ordered -= least
            ordered.sort()
            begins = np.arange(count + 1) * span
            return ordered, np.searchsorted(ordered, begins), begins[:-1] - least
    order = np.lexsort([values, groups])
    return values[order], np.searchsorted(groups[order], np.arange(count + 1)), np.zeros(count, values.dtype)


def highest(values: Column, groups: Column) -> Column:
    """Return for each row the largest value in its group. The groups must be sorted."""
    return _spread(np.maximum.reduceat(values, starts_of(groups)), groups) if len(values) else values


def lowest(values: Column, groups: Column) -> Column:
    """Return for each row the smallest value in its group. The groups must be sorted."""
    return _spread(np.minimum.reduceat(values, starts_of(groups)), groups) if len(values) else values


def sizes(groups: Column) -> Column:
    """Return for each row the number of rows in its group. The groups must be sorted."""
    begin = starts_of(groups)
    return _spread(np.diff(np.append(begin, len(groups))), groups)


def median_of_others(values: Column, groups: Column) -> Column:
    """Return for each row the median of the other rows of its group (sorted). A single row gets its own value."""
    result = np.array(values)
    begin = starts_of(groups)
    for size in np.unique(np.diff(np.append(begin, len(groups)))).tolist():
        if size < 2:
            continue
        at = begin[np.diff(np.append(begin, len(groups))) == size]
        block = values[at[:, None] + np.arange(size)]
        order = np.argsort(block, axis=1, kind="stable")
        ranked = np.take_along_axis(block, order, axis=1)
        place = np.argsort(order, axis=1, kind="stable")  # each row's position in sorted order
        low, high = (size - 2) // 2, (size - 1) // 2  # the middle of the other size - 1 rows
        a = np.take_along_axis(ranked, low + (place <= low), axis=1)
        b = np.take_along_axis(ranked, high + (place <= high), axis=1)
        result[at[:, None] + np.arange(size)] = a + (b - a) // 2 if values.dtype.kind == "i" else (a + b) / 2
    return result


def _spread(per_group: Column, groups: Column) -> Column:
    first = np.zeros(len(groups), np.int64)
    first[starts_of(groups)] = 1
    return per_group[np.cumsum(first) - 1]
