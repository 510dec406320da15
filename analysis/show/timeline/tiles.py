"""Intervals as they are drawn: cut into tiles, put into lanes, or as shares of bins of time."""

from collections.abc import Sequence

import numpy as np

from rankscope.analysis.core.intervals import Intervals, covers, measure, union
from rankscope.analysis.core.table import Column, Table


def lanes(start: Column, end: Column) -> Column:
    """Return for intervals in order of start the lowest lane in which each overlaps no earlier one."""
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

    `rest` is the code where none does; at the edges of `extra` intervals are cut too. Returns window, start, end, part.
    """
    cuts = [layer.ravel() for layer in layers] + ([] if extra is None else [extra.ravel()])
    edges = np.unique(np.concatenate([start, end, *cuts]))
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
    """Return for each bin between `edges` how much of it each code covers: shape (codes, bins), 0 to 1."""
    result = np.zeros((codes, len(edges) - 1))
    for number in np.unique(code).tolist():
        chosen = code == number
        covered = measure(union(start[chosen], end[chosen]), edges[:-1], edges[1:])
        result[number] = covered / (edges[1:] - edges[:-1])
    return result
