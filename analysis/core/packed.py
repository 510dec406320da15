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

from rankscope.analysis.core.sparse import Sparse
from rankscope.analysis.core.table import Table
from rankscope.conf.files import open_regular


class LazyTable(Table):
    """A table that is read when its columns are first used."""

    def __init__(self, load: Callable[[], Table], rows: int) -> None:
        self._load = load
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getattr__(self, name: str) -> Any:
        if name not in ("columns", "words"):
            raise AttributeError(name)
        table = self._load()
        self.columns, self.words = table.columns, table.words
        return self.__dict__[name]


def write_table(path: Path, table: Table) -> None:
    """Write a table. zlib's checksum is behind it, because a changed bit can be another number."""
    path.write_bytes(isal_zlib.compress(msgspec.msgpack.encode(table, enc_hook=plain), 1))


def read_table(path: Path) -> Table:
    """Read a table that `write_table` wrote. Raises `OSError` or `ValueError` if it is damaged."""
    with os.fdopen(open_regular(path), "rb") as file:
        data = file.read()
    try:
        text = isal_zlib.decompress(data)
    except isal_zlib.error as error:  # type: ignore[misc]  # an alias that the stubs do not know
        raise ValueError(f"{path}: {error}") from None
    table: Table = restored(msgspec.msgpack.decode(text))
    return table


def plain(value: Any) -> Any:
    """Return a table, array or number of numpy as what msgpack has; `restored` makes it again."""
    if isinstance(value, Table):
        return {"table": value.columns, "words": value.words}
    if isinstance(value, np.ndarray):
        return {"array": value.dtype.str, "shape": value.shape, "bytes": value.tobytes()}
    if isinstance(value, Sparse):
        return {"sparse": value.values, "rows": value.rows, "length": value.length, "fill": int(value.fill)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    raise NotImplementedError(type(value))


def restored(value: Any) -> Any:
    """Return what `plain` was given; anything else as it is."""
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return np.frombuffer(value["bytes"], value["array"]).reshape(value["shape"])
    if "sparse" in value:
        return Sparse(restored(value["rows"]), restored(value["sparse"]), value["length"], value["fill"])
    if list(value) == ["range"]:
        return range(*value["range"])
    if "table" in value:
        return Table({name: restored(column) for name, column in value["table"].items()}, value["words"])
    return value
