"""Tables and ranks on disk: Parquet for what may be large, one small checked file for what is left of a rank.

Nothing here decides when something is stored: see `cache`.
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.errors import Notice
from rankscope.analysis.rank_data import RankData
from rankscope.analysis.table import UNKNOWN, Table

LARGE = ("kernels", "launches", "host")  # of a RankData; each in a Parquet file of its own
_ROW_GROUP = 1 << 17
_DIGEST = 16  # bytes


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


# --- Parquet -------------------------------------------------------------------------------------------------


class TableWriter:
    """Writes tables of the same columns one after another into one Parquet file.

    Integers are stored as differences, strings as dictionaries, all compressed with zstd: 1 to 2 % of the JSON.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._writer: Any = None

    def add(self, table: Table) -> None:
        """Write more rows."""
        import pyarrow.parquet as pq

        arrow = table.to_arrow()
        if self._writer is None:
            integers = [name for name, column in table.columns.items() if column.dtype == np.int64]
            self._writer = pq.ParquetWriter(
                self.path,
                arrow.schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=sorted(table.words),
                column_encoding={name: "DELTA_BINARY_PACKED" for name in integers},
            )
        self._writer.write_table(arrow, row_group_size=_ROW_GROUP)
        self.rows += len(table)

    def close(self) -> None:
        """End the file."""
        if self._writer is not None:
            self._writer.close()


def write_table(path: Path, table: Table) -> None:
    """Write one table."""
    writer = TableWriter(path)
    try:
        writer.add(table)
    finally:
        writer.close()


def read_table(path: Path, columns: list[str] | None = None) -> Table:
    """Read a table that `write_table` wrote; `OSError` or `ValueError` when it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = pq.read_table(path, columns=columns, memory_map=True)
    found: dict[str, Any] = {}
    words: dict[str, list[str]] = {}
    for name in arrow.column_names:
        column = arrow[name]
        if pa.types.is_dictionary(column.type):
            column = column.unify_dictionaries().combine_chunks()
            array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
            found[name] = array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
            words[name] = array.dictionary.to_pylist()
        elif pa.types.is_integer(column.type) and column.null_count:
            found[name] = column.fill_null(UNKNOWN).to_numpy()
        else:
            found[name] = column.to_numpy()
    return Table(found, words)


# --- a rank --------------------------------------------------------------------------------------------------


def pack(data: RankData) -> bytes:
    """Return all of a rank but its large tables, of which only the number of rows is kept, with a check sum."""
    fields = {name: getattr(data, name) for name in data.__struct_fields__}
    for name in LARGE:
        fields[name] = len(fields[name])
    body = msgspec.msgpack.encode(fields, enc_hook=_plain)
    return hashlib.blake2b(body, digest_size=_DIGEST).digest() + body


def unpack(text: bytes, large: Mapping[str, Callable[[], Table]]) -> RankData:
    """Return the rank that `pack` packed; `large` gives its large tables when asked. `ValueError`: it is damaged."""
    body = text[_DIGEST:]
    if hashlib.blake2b(body, digest_size=_DIGEST).digest() != text[:_DIGEST]:
        raise ValueError("check sum differs")
    fields = msgspec.msgpack.decode(body)
    for name in LARGE:
        fields[name] = LazyTable(large[name], fields[name])
    for name, value in fields.items():
        fields[name] = _restored(value)
    fields["notices"] = msgspec.convert(fields["notices"], list[Notice])
    return RankData(**fields)


def without_large(data: RankData, large: Mapping[str, Callable[[], Table]]) -> RankData:
    """Return the rank with its large tables given up: they are loaded again when asked for."""
    lazy = {name: LazyTable(large[name], len(getattr(data, name))) for name in LARGE}
    return msgspec.structs.replace(data, **lazy)


def _plain(value: Any) -> Any:
    if isinstance(value, Table):
        return {"table": value.columns, "words": value.words}
    if isinstance(value, np.ndarray):
        return {"array": value.dtype.str, "shape": value.shape, "bytes": value.tobytes()}
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(type(value))


def _restored(value: Any) -> Any:
    if isinstance(value, dict) and "array" in value:
        return np.frombuffer(value["bytes"], value["array"]).reshape(value["shape"])
    if isinstance(value, dict) and "table" in value:
        return Table({name: _restored(column) for name, column in value["table"].items()}, value["words"])
    return value
