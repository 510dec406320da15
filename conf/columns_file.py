"""Tables that a rank writes as plain JSON and that the launcher turns into Parquet.

A rank imports nothing heavy that its job has not imported, so it writes columns with the standard library. The first
import of pyarrow or pandas in a rank would also fall between the stop of a profiler and its trace.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rankscope.conf.files import read_json, write_parquet, write_text

ARROW_TYPES = {str: "string", int: "int64", float: "double", bool: "bool"}


def json_of(parquet: Path) -> Path:
    """Return the JSON file that becomes `parquet`."""
    return parquet.with_suffix(".json")


def write_columns(rows: Iterable[Mapping[Any, Any]], types: Mapping[Any, type], parquet: Path) -> None:
    """Write rows as columns, to the JSON file that becomes `parquet`."""
    listed = list(rows)
    columns = {name: [row.get(name) for row in listed] for name in types}
    write_text(json_of(parquet), json.dumps(columns))


def read_columns(parquet: Path, types: Mapping[Any, type]) -> Any:
    """Return the Arrow table of the JSON file that becomes `parquet`. Raises `OSError` or `ValueError`."""
    import pyarrow as pa

    columns = read_json(json_of(parquet))
    if not isinstance(columns, dict):
        raise ValueError(f"{json_of(parquet)}: not a table of columns")
    try:
        count = max((len(values) for values in columns.values()), default=0)
        arrays = {name: pa.array(columns.get(name, [None] * count), ARROW_TYPES[kind]) for name, kind in types.items()}
        return pa.table(arrays)
    except (TypeError, OverflowError, pa.ArrowException) as error:
        raise ValueError(f"{json_of(parquet)}: not a table of columns ({error})") from None


def to_parquet(parquet: Path, types: Mapping[Any, type]) -> None:
    """Turn the JSON file into `parquet` and remove it; nothing if there is none."""
    if not json_of(parquet).exists():
        return
    write_parquet(parquet, read_columns(parquet, types))
    json_of(parquet).unlink()
