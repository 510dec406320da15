"""A column in a file of its own, for the millions of records of a large trace: only what is asked for is in memory."""

import errno
import mmap
import os
import resource
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from rankscope.analysis.core import at_once
from rankscope.analysis.core.column_like import ColumnLike

MANY = 1 << 18  # rows from which a column is better on the disk: the operators of some 140 MB of JSON
_OF_DESCRIPTORS = 0.5  # share of the descriptors that a process may have


def _are_descriptors_left() -> bool:
    """Return whether columns may take one more descriptor, because other files need some, too."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:  # the system does not say
        return True
    return most == resource.RLIM_INFINITY or used <= most * _OF_DESCRIPTORS


class OnDisk(ColumnLike):
    """A column of `length` rows in a file that has no name, so that it is gone when nobody has it any more.

    `offset` is added to each value but `unknown`.
    """

    def __init__(self, file: mmap.mmap, kind: Any, length: int, *, offset: int = 0, unknown: int = 0) -> None:
        self._bytes, self._offset, self._unknown = file, offset, unknown
        self._values = np.frombuffer(file, kind, length)

    @property
    def dtype(self) -> Any:
        return self._values.dtype

    def __len__(self) -> int:
        return len(self._values)

    def full(self) -> Any:
        result = np.empty(len(self), self.dtype)
        for rows in at_once.pieces(len(self)):
            result[rows] = self[rows]
        return result

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice) and np.ndim(index) == 1 and np.size(index) > at_once.ROWS:
            return self._long(np.asarray(index))
        found = self._values[index]
        if self._offset:
            found = np.where(found == self._unknown, found, found + self._offset)[()]
        elif isinstance(index, slice):
            found = found.copy()
        self._bytes.madvise(mmap.MADV_DONTNEED)  # pages that were read count as memory of the process until then
        return found

    def _long(self, index: Any) -> Any:
        """Return the values of many rows (a mask or positions), with only some pages in memory at a time."""
        if index.dtype == bool:
            if len(index) != len(self):
                raise IndexError(f"a mask of {len(index)} rows for a column of {len(self)}")
            index = np.flatnonzero(index)
        result = np.empty(len(index), self.dtype)
        for rows in at_once.pieces(len(index)):
            result[rows] = self[index[rows]]
        return result

    def mapped(self, function: Callable[[Any], Any]) -> Any:
        parts = [function(self[low : low + at_once.ROWS]) for low in range(0, max(1, len(self)), at_once.ROWS)]
        return np.concatenate(parts)

    def with_offset(self, offset: int, unknown: int) -> "OnDisk":
        """Return the column with `offset` added to each value but `unknown`."""
        return OnDisk(self._bytes, self.dtype, len(self), offset=offset, unknown=unknown)

    def reordered(self, order: Any) -> Any:
        """Return the values at `order` as a new column, on the disk if there is room."""
        try:
            written = Written(self.dtype)
            for low in range(0, len(order), at_once.ROWS):
                written.add(self[order[low : low + at_once.ROWS]])
            return written.column()
        except OSError:
            return self.full()[order]

    def __reduce__(self) -> Any:
        return np.array, (self.full(),)


class Written:
    """A column that is written to a file part by part. Its methods raise `OSError` if that is not possible."""

    _file: Any = None

    def __init__(self, kind: Any) -> None:
        self._kind, self._count = np.dtype(kind), 0
        if not _are_descriptors_left():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._file = tempfile.TemporaryFile(prefix="rankscope-", buffering=0)

    def add(self, values: Any) -> None:
        """Write more values. If the disk is full, what was added before can still be read."""
        left = np.ascontiguousarray(values, self._kind).view(np.uint8).data
        self._file.seek(self._count * self._kind.itemsize)
        while left:
            left = left[self._file.write(left) :]
        self._count += len(values)

    def read_back(self) -> Any:
        """Return what was written, as an array."""
        self._file.seek(0)
        return np.fromfile(self._file, self._kind, self._count)

    def column(self) -> OnDisk:
        """Return the column; nothing may be added afterwards."""
        return OnDisk(self.map(), self._kind, self._count)

    def map(self) -> mmap.mmap:
        """Return the values' bytes; nothing may be added afterwards."""
        return mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ)

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()  # the map of a column has a descriptor of its own


_mapped: "weakref.WeakSet[mmap.mmap]" = weakref.WeakSet()


def mapped(array: Any) -> Any:
    """Return a long array with its values in a file if there is room, otherwise unchanged.

    This is for arrays that numpy's functions get as they are, such as sets of intervals. What was read of the file is
    in memory until `release`.
    """
    if array.size < MANY:
        return array
    try:
        written = Written(array.dtype)
        written.add(array.reshape(-1))
        file = written.map()
    except OSError:
        return array
    _mapped.add(file)
    return np.frombuffer(file, array.dtype).reshape(array.shape)


def release() -> None:
    """Take the values of all `mapped` arrays out of memory. They are read again if they are needed."""
    for file in _mapped:
        file.madvise(mmap.MADV_DONTNEED)


def moved(column: Any) -> Any:
    """Return an array as a column on the disk if it is long and there is room, otherwise unchanged."""
    if not isinstance(column, np.ndarray) or len(column) < MANY:
        return column
    try:
        written = Written(column.dtype)
        written.add(column)
        return written.column()
    except OSError:  # there is no place for temporary files, no room, or no descriptor
        return column
