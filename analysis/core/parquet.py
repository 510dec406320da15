"""Reads small tables of a run folder, which are Parquet files."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankscope.conf.columns_file import ARROW_TYPES
from rankscope.conf.files import open_regular

MOST_VALUES = 40_000_000  # of a table that is read as a whole: 10^6 steps


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
