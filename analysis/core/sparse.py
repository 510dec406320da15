"""A column in which few rows have a value: metadata of collectives in a table of millions of operators."""

from collections.abc import Callable
from typing import Any

import numpy as np

from rankscope.analysis.core.column_like import ColumnLike

_DENSE_FROM = 8  # a column with a value in every eighth row is not worth it


class Sparse(ColumnLike):
    """A column of `length` rows, `values` at the sorted positions `rows` and `fill` everywhere else."""

    def __init__(self, rows: Any, values: Any, length: int, fill: int) -> None:
        self.rows, self.values, self.length, self.fill = rows, values, length, fill

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    def __len__(self) -> int:
        return self.length

    def full(self) -> Any:
        full = np.full(self.length, self.fill, self.values.dtype)
        full[self.rows] = self.values
        return full

    def __getitem__(self, index: Any) -> Any:
        """Return the value of a row, or the column of some rows (a mask, positions or a slice)."""
        if isinstance(index, slice):
            index = np.arange(*index.indices(self.length))
        index = np.asarray(index)
        if index.dtype == bool:
            index = np.flatnonzero(index)
        known, at = self.matches(np.atleast_1d(index))
        if index.ndim == 0:
            return self.values[at[0]] if len(at) else self.values.dtype.type(self.fill)
        return self.taken(known, at, len(index))

    def matches(self, index: Any) -> tuple[Any, Any]:
        """Return the positions in `index` of rows with a value, and the positions of these rows in `rows`."""
        if not len(self.rows):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        index = np.where(index < 0, index + self.length, index)
        at = np.minimum(np.searchsorted(self.rows, index), len(self.rows) - 1)
        known = np.flatnonzero(self.rows[at] == index)
        return known, at[known]

    def taken(self, known: Any, at: Any, length: int) -> Any:
        """Return a column of `length` rows, with the values of `at` in the rows `known`."""
        found = Sparse(known, self.values[at], length, self.fill)
        return np.asarray(found) if len(known) * _DENSE_FROM >= length else found

    def mapped(self, function: Callable[[Any], Any]) -> Any:
        values = function(self.values)
        full = np.full(self.length, function(np.full(1, self.fill, self.values.dtype)), values.dtype)
        full[self.rows] = values
        return full
