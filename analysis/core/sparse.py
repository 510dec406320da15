"""A column in which few rows have a value: metadata of collectives in a table of millions of operators."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

_DENSE_FROM = 8  # a column with a value in every eighth row is not worth it


class Sparse(NDArrayOperatorsMixin):
    """A column of `length` rows, `values` at the sorted positions `rows` and `fill` everywhere else.

    It behaves like a numpy column that nobody writes to. Anything but taking rows turns it into one.
    """

    def __init__(self, rows: Any, values: Any, length: int, fill: int) -> None:
        self.rows, self.values, self.length, self.fill = rows, values, length, fill

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes + self.values.nbytes)

    def __len__(self) -> int:
        return self.length

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        full = np.full(self.length, self.fill, self.values.dtype)
        full[self.rows] = self.values
        return full if dtype is None else full.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = [np.asarray(each) if isinstance(each, Sparse) else each for each in inputs]
        return getattr(ufunc, method)(*plain, **options)

    def __getitem__(self, index: Any) -> Any:
        """Return the value of a row, or the column of some rows (a mask, positions or a slice)."""
        if isinstance(index, slice):
            index = np.arange(*index.indices(self.length))
        index = np.asarray(index)
        if index.dtype == bool:
            index = np.flatnonzero(index)
        known, at = _matches(self.rows, np.atleast_1d(index), self.length)
        if index.ndim == 0:
            return self.values[at[0]] if len(at) else self.values.dtype.type(self.fill)
        return self._taken(known, at, len(index))

    def _taken(self, known: Any, at: Any, length: int) -> Any:
        """Return a column of `length` rows, with the values of `at` in the rows `known`."""
        found = Sparse(known, self.values[at], length, self.fill)
        return np.asarray(found) if len(known) * _DENSE_FROM >= length else found

    def tolist(self) -> list[Any]:
        found: list[Any] = np.asarray(self).tolist()
        return found

    def __iter__(self) -> Any:
        return iter(np.asarray(self))

    def copy(self) -> Any:
        return np.asarray(self)


def take(columns: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """Return the rows selected by a mask or by positions; sparse columns with values in the same rows search once."""
    rows = np.flatnonzero(rows) if rows.dtype == bool else rows
    found: dict[int, tuple[Any, Any]] = {}
    taken = {}
    for name, column in columns.items():
        if isinstance(column, Sparse):
            if id(column.rows) not in found:
                found[id(column.rows)] = _matches(column.rows, rows, column.length)
            taken[name] = column._taken(*found[id(column.rows)], len(rows))
        else:
            taken[name] = column[rows]
    return taken


def _matches(rows: Any, index: Any, length: int) -> tuple[Any, Any]:
    """Return the positions in `index` of rows with a value, and the positions of these rows in `rows`."""
    if not len(rows):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    index = np.where(index < 0, index + length, index)
    at = np.minimum(np.searchsorted(rows, index), len(rows) - 1)
    known = np.flatnonzero(rows[at] == index)
    return known, at[known]
