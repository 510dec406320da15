"""A column in which few rows have a value: metadata of collectives in a table of millions of operators."""

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
        if not len(self.rows):
            return _found(np.zeros(0, np.int64), self.values, index, self.fill)
        index = np.where(index < 0, index + self.length, index)
        at = np.minimum(np.searchsorted(self.rows, index), len(self.rows) - 1)
        known = np.flatnonzero(self.rows[at] == index) if index.ndim else self.rows[at] == index
        if index.ndim == 0:
            return self.values[at] if known else self.values.dtype.type(self.fill)
        return _found(known, self.values[at[known]], index, self.fill)

    def tolist(self) -> list[Any]:
        found: list[Any] = np.asarray(self).tolist()
        return found

    def __iter__(self) -> Any:
        return iter(np.asarray(self))

    def copy(self) -> Any:
        return np.asarray(self)


def _found(known: Any, values: Any, index: Any, fill: int) -> Any:
    if index.ndim == 0:
        return values.dtype.type(fill)
    found = Sparse(known, values, len(index), fill)
    return np.asarray(found) if len(known) * _DENSE_FROM >= len(index) else found
