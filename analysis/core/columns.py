"""Takes, changes and sorts all columns of a table at once: arrays, sparse columns and columns on the disk."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rankscope.analysis.core.on_disk import OnDisk, moved
from rankscope.analysis.core.sparse import Sparse


def take(columns: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """Return the rows selected by a mask or by positions. What is taken from a column on the disk stays there if long.

    Sparse columns with values in the same rows search once.
    """
    rows = np.flatnonzero(rows) if rows.dtype == bool else rows
    found: dict[int, tuple[Any, Any]] = {}
    taken = {}
    for name, column in columns.items():
        if isinstance(column, Sparse):
            if id(column.rows) not in found:
                found[id(column.rows)] = column.matches(rows)
            taken[name] = column.taken(*found[id(column.rows)], len(rows))
        else:
            taken[name] = moved(column[rows]) if isinstance(column, OnDisk) else column[rows]
    return taken


def assigned(columns: Mapping[str, Any], rows: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns with `values` (one for each of the sorted `rows`, or one for all) by the name of a column.

    Sparse columns stay so. Those with values in the same rows share their positions afterwards, too.
    """
    result = dict(columns)
    joined: dict[int, tuple[Any, Any, Any]] = {}
    for name, value in values.items():
        column = columns[name]
        if not isinstance(column, Sparse):
            result[name] = column.copy()
            result[name][rows] = value
            continue
        if id(column.rows) not in joined:
            every = np.union1d(column.rows, rows)
            joined[id(column.rows)] = (every, np.searchsorted(every, column.rows), np.searchsorted(every, rows))
        every, old, new = joined[id(column.rows)]
        filled = np.empty(len(every), column.dtype)
        filled[old] = column.values
        filled[new] = value
        result[name] = Sparse(every, filled, column.length, column.fill)
    return result


def sort_in_place(columns: Mapping[str, Any], by: str) -> dict[str, Any]:
    """Sort columns that nobody else has, one by one. Rows with the same key keep their order."""
    order = np.argsort(columns[by], kind="stable")
    if (order[1:] > order[:-1]).all():
        return dict(columns)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    places: dict[int, tuple[Any, Any]] = {}
    result = {}
    for name, column in columns.items():
        if isinstance(column, Sparse):
            if id(column.rows) not in places:
                at = place[column.rows]
                places[id(column.rows)] = (np.sort(at), np.argsort(at))
            rows, own = places[id(column.rows)]
            result[name] = Sparse(rows, column.values[own], column.length, column.fill)
        else:
            result[name] = column.reordered(order) if isinstance(column, OnDisk) else _permuted(column, order)
    return result


def _permuted(column: Any, order: Any) -> Any:
    column[:] = column[order]
    return column
