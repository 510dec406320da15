"""One trace of any size into Parquet, a table a class, in flat memory: a window and the rows of one row group.

`ingest` gives the same `RankTrace` as `kineto.read`, with tables that are read from the Parquet files when used.
"""

from pathlib import Path

from rankscope.analysis.core.parquet import LazyTable, TableWriter, read_table
from rankscope.analysis.core.table import Table
from rankscope.analysis.read.kineto import reader as kineto
from rankscope.analysis.read.rank_trace import RankTrace

_ROWS = 1 << 16  # of a row group
_PARTS = ("device", "launches", "host")


def ingest(
    path: Path, folder: Path, label: str | None = None, *, fast: bool | None = None, window: int | None = None
) -> RankTrace:
    """Read `path` into device.parquet, launches.parquet and host.parquet of `folder`, which must exist.

    In the files `start` counts from the trace's own base time, which may stand behind its events; in the result it
    counts from 1970, as always. Raises what `kineto.read` raises, and `OSError` where nothing can be written.
    """
    reader, builder = kineto.start(path, label, fast=fast, window=window)
    writers = {part: TableWriter(folder / f"{part}.parquet") for part in _PARTS}
    try:
        for block in reader:
            builder.add(block)
            for part, writer in writers.items():
                if builder.rows(part) >= _ROWS:
                    writer.add(builder.table(part))
        for part, writer in writers.items():
            writer.add(builder.table(part))
    finally:
        for writer in writers.values():
            writer.close()
    base = kineto.base_time(reader.metadata)
    tables: dict[str, Table] = {
        part: LazyTable(_Part(writer.path, base), writer.rows) for part, writer in writers.items()
    }
    trace = builder.finish(reader, tables)
    kineto.check_activity(trace)
    return trace


class _Part:
    """Loads one of the tables."""

    def __init__(self, path: Path, base: int) -> None:
        self._path = path
        self._base = base

    def __call__(self) -> Table:
        return kineto.from_1970(read_table(self._path), self._base)
