"""Columns that are not one array in memory: they behave like columns of numpy that nobody writes to."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin


class ColumnLike(NDArrayOperatorsMixin):
    """A column that takes less memory than its array. numpy's functions get an array that is made for the call."""

    @property
    @abstractmethod
    def dtype(self) -> Any:
        """The type of the values."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def full(self) -> Any:
        """Return all values as a new array."""

    @abstractmethod
    def __getitem__(self, index: Any) -> Any:
        """Return the value of a row, or the column of some rows (a mask, positions or a slice)."""

    @abstractmethod
    def mapped(self, function: Callable[[Any], Any]) -> Any:
        """Return the array of what an elementwise function gives, without the array of all values."""

    @property
    def nbytes(self) -> int:
        """The size of the array of all values."""
        return len(self) * int(self.dtype.itemsize)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        full = self.full()
        return full if dtype is None else full.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if any(isinstance(each, ColumnLike) for each in options.get("out", ())):
            return NotImplemented
        single = method == "__call__" and ufunc.nout == 1 and not options
        if single and all(each is self or np.isscalar(each) for each in inputs):
            return self.mapped(lambda values: ufunc(*(values if each is self else each for each in inputs)))
        plain = [np.asarray(each) if isinstance(each, ColumnLike) else each for each in inputs]
        return getattr(ufunc, method)(*plain, **options)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.full())

    def copy(self) -> Any:
        return self.full()

    def __getattr__(self, name: str) -> Any:
        """Return a method of numpy's arrays (`min`, `tolist`), bound to the array of all values."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.full(), name)
