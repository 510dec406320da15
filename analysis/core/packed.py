"""Tables and arrays as bytes, for what rankscope keeps for itself: msgpack, and zlib for tables in files of their own.

The columns are numpy's own bytes, so writing and reading them costs little more than copying them.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from isal import isal_zlib

from rankscope.analysis.core.on_disk import OnDisk
from rankscope.analysis.core.sparse import Sparse
from rankscope.analysis.core.table import Table
from rankscope.conf.files import open_regular

_SIZE = 8  # bytes that say how long the part before the arrays is
_NOTHING = memoryview(b"")


class LazyTable(Table):
    """A table that is read or made when its columns are first used; `rows` is its length if that is known before."""

    def __init__(self, load: Callable[[], Table], rows: int | None = None) -> None:
        self._load = load
        self._rows = rows

    def __len__(self) -> int:
        return super().__len__() if self._rows is None else self._rows

    def __getattr__(self, name: str) -> Any:
        if name not in ("columns", "words"):
            raise AttributeError(name)
        table = self._load()
        self.columns, self.words = table.columns, table.words
        return self.__dict__[name]


def write_table(path: Path, table: Table) -> None:
    """Write a table. zlib's checksum is behind it, because a changed bit can be another number.

    Arrays follow the rest one by one, because a copy of all of them would take as much memory as they do.
    """
    arrays: list[Any] = []
    at = 0

    def aside(value: Any) -> Any:
        nonlocal at
        if not isinstance(value, np.ndarray | OnDisk):
            return plain(value)
        arrays.append(value)
        at += value.nbytes
        return {"aside": value.dtype.str, "count": len(value), "at": at - value.nbytes}

    head = msgspec.msgpack.encode(table, enc_hook=aside)
    packer = isal_zlib.compressobj(1)
    with path.open("wb") as file:
        for part in (len(head).to_bytes(_SIZE, "little"), head):
            file.write(packer.compress(part))
        for array in arrays:
            file.write(packer.compress(np.ascontiguousarray(array).view(np.uint8).data))
        file.write(packer.flush())


def read_table(path: Path) -> Table:
    """Read a table that `write_table` wrote. Raises `OSError` or `ValueError` if it is damaged."""
    with os.fdopen(open_regular(path), "rb") as file:
        data = file.read()
    try:
        text = isal_zlib.decompress(data)
    except isal_zlib.error as error:  # type: ignore[misc]  # an alias that the stubs do not know
        raise ValueError(f"{path}: {error}") from None
    begin = _SIZE + int.from_bytes(text[:_SIZE], "little")
    table: Table = restored(msgspec.msgpack.decode(memoryview(text)[_SIZE:begin]), memoryview(text)[begin:])
    return table


def plain(value: Any) -> Any:
    """Return a table, array or number of numpy as what msgpack has; `restored` makes it again."""
    if isinstance(value, Table):
        return {"table": value.columns, "words": value.words}
    if isinstance(value, OnDisk):
        value = value.full()
    if isinstance(value, np.ndarray):
        return {"array": value.dtype.str, "shape": value.shape, "bytes": value.tobytes()}
    if isinstance(value, Sparse):
        return {"sparse": value.values, "rows": value.rows, "length": value.length, "fill": int(value.fill)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    raise NotImplementedError(type(value))


def restored(value: Any, arrays: memoryview = _NOTHING) -> Any:
    """Return what `plain` was given; anything else as it is. `arrays` holds those that are written aside."""
    if not isinstance(value, dict):
        return value
    if "aside" in value:
        kind = np.dtype(value["aside"])
        return np.frombuffer(arrays[value["at"] :][: value["count"] * kind.itemsize], kind)
    if "array" in value:
        return np.frombuffer(value["bytes"], value["array"]).reshape(value["shape"])
    if "sparse" in value:
        rows, values = (restored(value[name], arrays) for name in ("rows", "sparse"))
        return Sparse(rows, values, value["length"], value["fill"])
    if list(value) == ["range"]:
        return range(*value["range"])
    if "table" in value:
        return Table({name: restored(column, arrays) for name, column in value["table"].items()}, value["words"])
    return value
