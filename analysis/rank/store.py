"""Serialises a rank: Parquet for its large tables, one small file with a checksum for the rest.

`cache` decides when something is stored.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.core.notices import Notice
from rankscope.analysis.core.parquet import LazyTable
from rankscope.analysis.core.table import Table
from rankscope.analysis.rank.rank_data import DeviceModel, DeviceWork, RankData

LARGE = ("kernels", "launches", "host")  # of a RankData; each in its own Parquet file
_DIGEST = 16  # bytes


# --- a rank --------------------------------------------------------------------------------------------------


def pack(data: RankData) -> bytes:
    """Return a rank without its large tables, with a checksum. Of these tables only the number of rows is kept."""
    fields = {name: getattr(data, name) for name in data.__struct_fields__}
    for name in LARGE:
        fields[name] = len(fields[name])
    body = msgspec.msgpack.encode(fields, enc_hook=_plain)
    return hashlib.blake2b(body, digest_size=_DIGEST).digest() + body


def unpack(text: bytes, large: Mapping[str, Callable[[], Table]]) -> RankData:
    """Return the rank that `pack` packed. `large` loads its large tables on demand. `ValueError` if it is damaged."""
    body = text[_DIGEST:]
    if hashlib.blake2b(body, digest_size=_DIGEST).digest() != text[:_DIGEST]:
        raise ValueError("checksum differs")
    fields = msgspec.msgpack.decode(body)
    for name in LARGE:
        fields[name] = LazyTable(large[name], fields[name])
    for name, value in fields.items():
        fields[name] = _restored(value)
    fields["groups"] = {name: _restored(ranks) for name, ranks in fields["groups"].items()}
    fields["notices"] = msgspec.convert(fields["notices"], list[Notice])
    fields["others"] = [
        DeviceWork(**{name: _restored(value) for name, value in item.items()}) for item in fields["others"]
    ]
    fields["model"] = msgspec.convert(fields["model"], DeviceModel | None)
    return RankData(**fields)


def without_large(data: RankData, large: Mapping[str, Callable[[], Table]]) -> RankData:
    """Return the rank with its large tables released; `large` loads them again on demand."""
    lazy = {name: LazyTable(large[name], len(getattr(data, name))) for name in LARGE}
    return msgspec.structs.replace(data, **lazy)


def _plain(value: Any) -> Any:
    if isinstance(value, Table):
        return {"table": value.columns, "words": value.words}
    if isinstance(value, np.ndarray):
        return {"array": value.dtype.str, "shape": value.shape, "bytes": value.tobytes()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    raise NotImplementedError(type(value))


def _restored(value: Any) -> Any:
    if isinstance(value, dict) and "array" in value:
        return np.frombuffer(value["bytes"], value["array"]).reshape(value["shape"])
    if isinstance(value, dict) and list(value) == ["range"]:
        return range(*value["range"])
    if isinstance(value, dict) and "table" in value:
        return Table({name: _restored(column) for name, column in value["table"].items()}, value["words"])
    return value
