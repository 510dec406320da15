"""`Table`: named numpy columns of the same length. The analysis uses it internally; pandas and Arrow only at the edges.

Importing pandas takes longer than a small analysis, so it is imported only if a DataFrame is asked for.
A column in `words` holds codes (int32, -1 = unknown) into a list of strings.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core import on_disk
from rankscope.analysis.core.column_like import ColumnLike
from rankscope.analysis.core.columns import take
from rankscope.analysis.core.on_disk import moved

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Column = NDArray[Any]
UNKNOWN = np.iinfo(np.int64).min  # "no value" in an int64 column: null in Arrow and pandas, never 0
_FEW_ROWS = 16  # for each word: with more rows, looking for the words that occur takes longer than it saves


class Table:
    """Columns of the same length, immutable by convention: every operation returns a new table."""

    def __init__(self, columns: Mapping[str, Any], words: Mapping[str, list[str]] | None = None) -> None:
        self.columns: dict[str, Any] = {
            name: column if type(column) is np.ndarray or isinstance(column, ColumnLike) else np.asarray(column)
            for name, column in columns.items()
        }
        self.words: dict[str, list[str]] = dict(words or {})
        if len(set(map(len, self.columns.values()))) > 1:
            raise ValueError(f"columns of different lengths: { {k: len(v) for k, v in self.columns.items()} }")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __getitem__(self, name: str) -> Column:
        column: Column = self.columns[name]
        return column

    def take(self, rows: Column, *names: str) -> "Table":
        """Return the rows selected by a mask or by positions; with names only these columns."""
        table = self.only(*names) if names else self
        if rows.dtype == bool and rows.all() and len(rows) == len(self):
            return table  # a trace without oddities is not copied at each check
        return Table(take(table.columns, rows), table.words)

    def only(self, *names: str) -> "Table":
        """Return the named columns."""
        words = {name: self.words[name] for name in names if name in self.words}
        return Table({name: self.columns[name] for name in names}, words)

    def sort(self, *names: str) -> "Table":
        """Return the rows sorted by the named columns; the first name takes precedence."""
        order = np.lexsort([self.columns[name] for name in reversed(names)])
        return self if (order[1:] > order[:-1]).all() else self.take(order)

    def moved(self) -> "Table":
        """Return the table with its columns on the disk if they are long and there is room."""
        if len(self) < on_disk.MANY:
            return self
        return Table({name: moved(column) for name, column in self.columns.items()}, self.words)

    def with_columns(self, **columns: Any) -> "Table":
        """Return the table with columns added or replaced."""
        return Table({**self.columns, **columns}, self.words)

    def texts(self, name: str) -> list[str | None]:
        """Return a coded column as strings."""
        words = self.words[name]
        return [words[code] if code >= 0 else None for code in self.columns[name].tolist()]

    def where(self, name: str, holds: Callable[[str], bool]) -> Column:
        """Return a mask of the rows whose word in a coded column satisfies `holds`; False for rows without a word."""
        return self.of_words(name, holds, otherwise=False)

    def of_words(self, name: str, value: Callable[[str], Any], *, otherwise: Any) -> Column:
        """Return for each row the value of its word in a coded column, `otherwise` for rows without a word.

        The tables of a rank share their words, so a small one has few of them: only these are looked at.
        """
        codes, words = self.columns[name], self.words[name]
        values: Column = np.full(len(words) + 1, otherwise)
        if len(codes) < _FEW_ROWS * len(words):
            used = np.zeros(len(words) + 1, bool)
            used[np.asarray(codes)] = True
            asked = np.flatnonzero(used[:-1])
            values[asked] = [value(words[code]) for code in asked.tolist()]
        else:
            values[:-1] = list(map(value, words))
        if (values == otherwise).all():  # as most tests of names say
            return np.full(len(codes), otherwise, values.dtype)
        if isinstance(codes, ColumnLike):
            return np.asarray(codes.mapped(values.__getitem__))
        return np.asarray(values.take(codes, mode="wrap"))  # -1 is the last value

    @staticmethod
    def concat(tables: Iterable["Table"], *, on_disk: bool = False) -> "Table":
        """Stack tables with the same columns. Their words are merged and the codes rewritten.

        With `on_disk`, long columns are moved there one by one.
        """
        parts = list(tables)
        kept = moved if on_disk else np.asarray
        if len(parts) == 1:
            return parts[0]
        words: dict[str, list[str]] = {}
        columns: dict[str, Column] = {}
        for name in parts[0].columns:
            if name in parts[0].words:
                words[name], codes = _merge_words([(part[name], part.words[name]) for part in parts])
                columns[name] = kept(np.concatenate(codes))
            else:
                columns[name] = kept(np.concatenate([np.asarray(part[name]) for part in parts]))
        return Table(columns, words)

    def to_arrow(self) -> "pa.Table":
        """Return an Arrow table. Coded columns become dictionaries, `UNKNOWN` and NaN become null."""
        import pyarrow as pa

        arrays = {}
        for name, column in ((name, np.asarray(each)) for name, each in self.columns.items()):
            if name in self.words:
                codes = _arrow(column.astype(np.int32, copy=False), column < 0)
                arrays[name] = pa.DictionaryArray.from_arrays(codes, _arrow_words(self.words[name]))
            else:
                arrays[name] = _arrow(column, _unknown(column))
        return pa.Table.from_arrays(list(arrays.values()), list(arrays))

    def to_pandas(self) -> "pd.DataFrame":
        """Return a DataFrame. Coded columns become categorical, integers with unknown values become `Int64`."""
        import pandas as pd

        series: dict[str, Any] = {}
        for name, column in ((name, np.asarray(each)) for name, each in self.columns.items()):
            if name in self.words:
                series[name] = pd.Categorical.from_codes(column.astype(np.int32), pd.Index(self.words[name], dtype=str))
            elif column.dtype == np.int64 and (column == UNKNOWN).any():
                series[name] = pd.arrays.IntegerArray(column, column == UNKNOWN)
            else:
                series[name] = column
        return pd.DataFrame(series)


def _unknown(column: Column) -> Column | None:
    """Return a mask of the rows without a value in an uncoded column; None for types that always have one."""
    if column.dtype == np.int64:
        return np.asarray(column == UNKNOWN)
    return np.isnan(column) if column.dtype.kind == "f" else None


def _arrow(column: Column, unknown: Column | None) -> "pa.Array":
    """Return a column as an Arrow array. `pyarrow.array` would import pandas to check for a Series."""
    import pyarrow as pa

    valid = None
    if unknown is not None and unknown.any():
        valid = pa.py_buffer(np.packbits(~unknown, bitorder="little"))
    if column.dtype == bool:
        data, kind = np.packbits(column, bitorder="little"), pa.bool_()
    else:
        data, kind = np.ascontiguousarray(column), pa.from_numpy_dtype(column.dtype)
    return pa.Array.from_buffers(kind, len(column), [valid, pa.py_buffer(data)])


def _arrow_words(words: list[str]) -> "pa.Array":
    """Return strings as an Arrow array, also without importing pandas."""
    import pyarrow as pa

    texts = [word.encode("utf-8", "replace") for word in words]
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(b"".join(texts)))


def encode(values: Iterable[str | None]) -> tuple[Column, list[str]]:
    """Turn strings into codes (int32, -1 for None) and the list of distinct strings in order of appearance."""
    seen: dict[str | None, int] = {None: -1}
    codes = [seen.setdefault(value, len(seen) - 1) for value in values]
    return np.array(codes, np.int32), [word for word in seen if word is not None]


def _merge_words(parts: list[tuple[Column, list[str]]]) -> tuple[list[str], list[Column]]:
    seen: dict[str, int] = {}
    merged = []
    for codes, words in parts:
        lookup = np.array([seen.setdefault(word, len(seen)) for word in words] + [-1], np.int32)
        merged.append(lookup[np.asarray(codes)])  # code -1 takes the last entry, which is -1
    return list(seen), merged
