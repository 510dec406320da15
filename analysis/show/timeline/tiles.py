"""Prepares intervals for drawing: cuts them into tiles, puts them into lanes, or sums them per bin of time."""

from collections.abc import Sequence

import numpy as np

from rankscope.analysis.core.group_by import distinct
from rankscope.analysis.core.intervals import Intervals, covers, measure, union
from rankscope.analysis.core.table import Column, Table


def lanes(start: Column, end: Column) -> Column:
    """Return the lowest lane in which each interval overlaps no earlier one; intervals must be sorted by start."""
    free: list[int] = []
    result = np.zeros(len(start), np.int64)
    for index, (begin, until) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        lane = next((lane for lane, at in enumerate(free) if at <= begin), len(free))
        if lane == len(free):
            free.append(0)
        free[lane] = until
        result[index] = lane
    return result


def tile(
    layers: Sequence[Intervals],
    codes: Sequence[int],
    rest: int,
    start: Column,
    end: Column,
    extra: Intervals | None = None,
) -> Table:
    """Cut windows (in order, disjoint) into intervals, each with the code of the first layer that covers it.

    `rest` is the code if no layer does. Edges of `extra` cut intervals as well. Returns window, start, end, part.
    """
    cuts = [layer.ravel() for layer in layers] + ([] if extra is None else [extra.ravel()])
    edges = distinct(np.concatenate([start, end, *cuts]))
    left, right = edges[:-1], edges[1:]
    window = np.searchsorted(start, left, "right") - 1
    inside = (window >= 0) & (left < end[window]) if len(start) else np.zeros(len(left), bool)
    left, right, window = left[inside], right[inside], window[inside]
    part = np.full(len(left), rest, np.int64)
    for layer, code in zip(reversed(layers), reversed(codes), strict=True):
        part[covers(layer, left)] = code
    key = part * 2 if extra is None else part * 2 + covers(extra, left)
    first = np.ones(len(left), bool)
    first[1:] = (key[1:] != key[:-1]) | (window[1:] != window[:-1]) | (left[1:] != right[:-1])
    last = np.append(first[1:], True) if len(left) else first
    return Table({"window": window[first], "start": left[first], "end": right[last], "part": part[first]})


def shares(start: Column, end: Column, code: Column, codes: int, edges: Column) -> Column:
    """Return the share (0 to 1) of each bin between `edges` that each code covers; shape (codes, bins)."""
    result = np.zeros((codes, len(edges) - 1))
    for number in np.unique(code).tolist():
        chosen = code == number
        covered = measure(union(start[chosen], end[chosen]), edges[:-1], edges[1:])
        result[number] = covered / (edges[1:] - edges[:-1])
    return result


def summed(start: Column, end: Column, code: Column, codes: int, edges: Column) -> Column:
    """Return the time of each bin between `edges` that intervals of each code cover; shape (codes, bins).

    Time that several intervals cover counts several times. Below a point lie all starts before it, minus all ends.
    """
    result = np.zeros((codes, len(edges) - 1), np.int64)
    for number in np.unique(code).tolist():
        begun, ended = (_before(values[code == number], edges) for values in (start, end))
        result[number] = np.diff(begun - ended)
    return result


def _before(values: Column, points: Column) -> Column:
    """Return for each point the sum of its distances to all values before it."""
    ordered = np.sort(values, kind="stable")
    count = np.searchsorted(ordered, points)
    total = np.concatenate([[0], np.cumsum(ordered)])
    distances: Column = count * points - total[count]
    return distances
