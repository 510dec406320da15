"""Tables as Parquet files, which are read when their columns are first used."""

import hashlib
import mmap
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.conf.columns_file import ARROW_TYPES
from rankscope.conf.files import open_regular

MOST_VALUES = 40_000_000  # of a table that is read as a whole: 10^6 steps
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


def write_table(path: Path, table: Table) -> None:
    """Write a table to a Parquet file, with a checksum behind it: a changed bit can be another number.

    Integers are stored as differences, strings as dictionaries, everything compressed with zstd: 1 to 2 % of the JSON.
    """
    import pyarrow.parquet as pq

    integers = [name for name, column in table.columns.items() if column.dtype == np.int64]
    settings = {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": sorted(table.words),
        "column_encoding": {name: "DELTA_BINARY_PACKED" for name in integers},
    }
    writer = None
    with path.open("wb+") as file:
        for low in range(0, max(len(table), 1), _ROW_GROUP):  # a part at a time: Arrow's copy of a table is large
            part = Table({name: column[low : low + _ROW_GROUP] for name, column in table.columns.items()}, table.words)
            arrow = part.to_arrow()
            writer = writer or pq.ParquetWriter(file, arrow.schema, **settings)
            writer.write_table(arrow)
        if writer is not None:
            writer.close()
        file.seek(0)
        file.write(hashlib.file_digest(file, _checksum).digest())


def _checksum(data: Any = b"") -> Any:
    return hashlib.blake2b(data, digest_size=_DIGEST)


def read_parquet(path: Path, types: Mapping[Any, type]) -> Any:
    """Read a small table of a run folder as an Arrow table with the columns of `types`; missing ones are null.

    Raises `OSError`, or `ValueError` if it is damaged, huge or has other types. A few kilobytes of Parquet can hold
    millions of equal rows, so the number of values is looked at first.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with os.fdopen(open_regular(path), "rb") as file:
            parquet = pq.ParquetFile(file)
            values = parquet.metadata.num_rows * parquet.metadata.num_columns
            if values > MOST_VALUES:
                raise ValueError(f"{path}: {values} values are more than {MOST_VALUES}")
            names = [name for name in parquet.schema_arrow.names if name in types]
            found = parquet.read(columns=names)
            arrays = {
                name: found[name].cast(ARROW_TYPES[kind]) if name in names else pa.nulls(len(found), ARROW_TYPES[kind])
                for name, kind in types.items()
            }
            return pa.table(arrays)
    except (pa.ArrowException, KeyError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path}: {error}") from None


def read_table(path: Path, columns: list[str] | None = None) -> Table:
    """Read a table that `write_table` wrote. Raises `OSError` or `ValueError` if it is damaged.

    Columns are taken out of Arrow's buffers here, because Arrow's own conversion to numpy imports pandas.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with os.fdopen(open_regular(path), "rb") as file:
        data = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    if _checksum(data[:-_DIGEST]).digest() != data[-_DIGEST:].to_pybytes():
        raise ValueError(f"{path}: damaged")
    arrow = pq.ParquetFile(pa.BufferReader(data[:-_DIGEST])).read(columns=columns)
    found: dict[str, Any] = {}
    words: dict[str, list[str]] = {}
    for name in arrow.column_names:
        column = arrow[name].unify_dictionaries()
        chunks = column.chunks or [pa.array([], column.type)]
        if pa.types.is_dictionary(column.type):
            found[name] = np.concatenate([_values(chunk.indices, -1) for chunk in chunks])
            words[name] = chunks[0].dictionary.to_pylist()
        else:
            found[name] = np.concatenate([_values(chunk, UNKNOWN) for chunk in chunks])
    return Table(found, words)


def _values(array: Any, absent: int) -> Any:
    """Return an Arrow array of numbers or truth values as a numpy array; nulls become `absent`, or NaN."""
    valid, data = array.buffers()
    window = slice(array.offset, array.offset + len(array))
    if str(array.type) == "bool":
        return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[window].astype(bool)
    kind = np.dtype({"double": "float64", "float": "float32"}.get(str(array.type), str(array.type)))
    values = np.frombuffer(data, kind)[window] if data is not None else np.zeros(len(array), kind)
    if not array.null_count:
        return values
    null = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[window] == 0
    return np.where(null, np.nan if kind.kind == "f" else kind.type(absent), values)
