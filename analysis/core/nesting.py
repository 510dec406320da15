"""How intervals of the same thread nest in one another: operators in operators, calls in operators.

Rows are in `order`: by thread, then by start, the longer one first. So a row is nested in an earlier one, and what is
nested in a row follows it directly. The parent of a row is the last earlier row of its thread that still runs when the
row begins. `pieces` cuts the millions of rows of a trace; all other functions work on the columns of a piece.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from rankscope.analysis.core import at_once
from rankscope.analysis.core.table import Column

NONE = -1  # no parent


def order(thread: Column, start: Column, end: Column) -> Column:
    """Return the positions of the rows by thread, start, and end, the longest first.

    Recorders write rows almost in order of time, and sorting such a column takes one pass. So rows that begin at the
    same time are put in order afterwards, instead of sorting by end first, which would mix everything.
    """
    by_start = np.argsort(start, kind="stable")
    ordered = start[by_start]
    equal = ordered[1:] == ordered[:-1]
    if equal.any():
        tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
        rows = by_start[tied]
        by_start[tied] = rows[np.lexsort((-end[rows], start[rows]))]
    low, high = int(thread.min(initial=0)), int(thread.max(initial=0))
    narrow = np.min_scalar_type(high - low)  # numpy sorts columns of 16 bits without comparisons
    return by_start[np.argsort((thread[by_start] - low).astype(narrow), kind="stable")]


def pieces(thread: Column, start: Column, duration: Column, wanted: Column, most: int) -> Iterator[Column]:
    """Yield the positions of the rows of the mask `wanted`, in `order`, in pieces of about `most` rows or more.

    A piece has rows of one thread, and no row is nested in one of another piece.
    """
    for each in np.unique(thread).tolist():
        rows = np.flatnonzero(wanted & (thread == each)).astype(np.min_scalar_type(-len(thread)))
        if not _are_in_order(rows, start):
            rows = rows[np.argsort(start[rows], kind="stable")]
        borders = np.append(_free(rows, start, duration), len(rows))
        at = borders[np.searchsorted(borders, np.arange(most, len(rows), most))]
        for low, high in pairwise(np.unique([0, *at.tolist(), len(rows)]).tolist()):
            piece = rows[low:high]
            yield piece[order(thread[piece], start[piece], start[piece] + np.maximum(duration[piece], 0))]


def _are_in_order(rows: Column, start: Column) -> bool:
    """Return whether the rows begin one after the other."""
    parts = (start[rows[low : low + at_once.ROWS + 1]] for low in range(0, len(rows), at_once.ROWS))
    return all(bool((part[1:] >= part[:-1]).all()) for part in parts)


def _free(rows: Column, start: Column, duration: Column) -> Column:
    """Return the positions in `rows` (in order of start) of rows that begin when all before them have ended."""
    if not len(rows):
        return np.zeros(0, np.int64)
    found = []
    begun = ended = start[rows[0]]
    for low in range(0, len(rows), at_once.ROWS):
        part = rows[low : low + at_once.ROWS]
        begins, took = start[part], np.maximum(duration[part], 0)
        ends = np.maximum.accumulate(np.append(ended, begins + took))[1:]
        before, reached = np.append(begun, begins[:-1]), np.append(ended, ends[:-1])
        found.append(low + np.flatnonzero((begins > before) & (reached <= begins)))
        begun, ended = begins[-1], ends[-1]
    return np.concatenate(found)


def parents(thread: Column, start: Column, end: Column) -> Column:
    """Return for each row (in `order`) the row that it is nested in, `NONE` if there is none.

    Every row first supposes its predecessor, and takes over what that row supposes for as long as its own supposition
    ended before it began. What lies between a row and its supposition has ended, so nothing is skipped.
    """
    result = np.arange(-1, len(start) - 1)
    first = np.append(True, thread[1:] != thread[:-1]) if len(thread) else np.zeros(0, bool)
    result[first] = NONE
    ended = np.flatnonzero(result >= 0)
    while True:
        ended = ended[end[result[ended]] <= start[ended]]
        if not len(ended):
            return result
        result[ended] = result[result[ended]]
        ended = ended[result[ended] >= 0]


def depths(parent: Column) -> Column:
    """Return for each row how many rows it is nested in."""
    depth = (parent >= 0).astype(np.int64)
    above, rows = parent.copy(), np.flatnonzero(parent >= 0)
    while len(rows):  # twice as far up each time
        over = above[rows]
        depth[rows] += depth[over]
        above[rows] = above[over]
        rows = rows[above[rows] >= 0]
    return depth


def with_nested(values: Column, parent: Column, depth: Column) -> Column:
    """Return for each row the sum of the values of the row and of everything nested in it."""
    total = values.copy()
    deepest_first = np.argsort(depth, kind="stable")[::-1]
    ends = np.searchsorted(-depth[deepest_first], np.arange(-int(depth.max(initial=0)), 1), "right")
    begin = 0
    for end in ends[:-1].tolist():  # the outermost rows have no parent
        rows = deepest_first[begin:end]
        np.add.at(total, parent[rows], total[rows])
        begin = end
    return total


def inside_same(names: Column, nested: Column) -> Column:
    """Return whether each row is nested in a row with the same name, from the names' codes (at least -1).

    `nested` is the number of rows that are nested in each row.
    """
    if not len(names):
        return np.zeros(0, bool)
    by_name = np.argsort(names, kind="stable")
    row = np.arange(len(names))[by_name]
    base = (names[by_name].astype(np.int64) + 1) * len(names)  # one name's reach ends below the next name's rows
    reach = np.maximum.accumulate(base + row + nested[by_name])
    result = np.zeros(len(names), bool)
    result[by_name[1:]] = reach[:-1] >= (base + row)[1:]
    return result


def running_at(times: Column, thread: Column, *, threads: Column, start: Column, end: Column, parent: Column) -> Column:
    """Return the innermost row that runs at each time on its thread, `NONE` if there is none."""
    place = np.full(len(times), NONE)
    for each in np.unique(thread).tolist():
        low, high = np.searchsorted(threads, (each, each + 1))
        own = np.flatnonzero(thread == each)
        at = np.searchsorted(start[low:high], times[own], "right") - 1
        place[own] = np.where(at >= 0, low + at, NONE)
    return out_of_ended(place, times, end, parent)


def out_of_ended(place: Column, times: Column, end: Column, parent: Column) -> Column:
    """Move each place up to the first row that still runs at its time."""
    place = place.copy()
    rows = np.flatnonzero(place >= 0)
    while len(rows):
        rows = rows[end[place[rows]] <= times[rows]]
        place[rows] = parent[place[rows]]
        rows = rows[place[rows] >= 0]
    return place
