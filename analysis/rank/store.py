"""Serialises a rank: its large tables in files of their own, one small file with a checksum for the rest.

`cache` decides when something is stored.
"""

from collections.abc import Callable, Mapping

import msgspec
from isal import isal_zlib

from rankscope.analysis.core.notices import Notice
from rankscope.analysis.core.packed import LazyTable, plain, restored
from rankscope.analysis.core.table import Table
from rankscope.analysis.rank.rank_data import DeviceModel, DeviceWork, RankData

LARGE = ("kernels", "launches", "host")  # of a RankData; each in a file of its own
_CHECKSUM = 4  # bytes


# --- a rank --------------------------------------------------------------------------------------------------


def pack(data: RankData) -> bytes:
    """Return a rank without its large tables, with a checksum. Of these tables only the number of rows is kept."""
    fields = {name: getattr(data, name) for name in data.__struct_fields__}
    for name in LARGE:
        fields[name] = len(fields[name])
    body = msgspec.msgpack.encode(fields, enc_hook=plain)
    return _checksum(body) + body


def unpack(text: bytes, large: Mapping[str, Callable[[], Table]]) -> RankData:
    """Return the rank that `pack` packed. `large` loads its large tables on demand. `ValueError` if it is damaged."""
    body = text[_CHECKSUM:]
    if _checksum(body) != text[:_CHECKSUM]:
        raise ValueError("checksum differs")
    fields = msgspec.msgpack.decode(body)
    for name in LARGE:
        fields[name] = LazyTable(large[name], fields[name])
    for name, value in fields.items():
        fields[name] = restored(value)
    fields["groups"] = {name: restored(ranks) for name, ranks in fields["groups"].items()}
    fields["notices"] = msgspec.convert(fields["notices"], list[Notice])
    fields["others"] = [
        DeviceWork(**{name: restored(value) for name, value in item.items()}) for item in fields["others"]
    ]
    fields["model"] = msgspec.convert(fields["model"], DeviceModel | None)
    return RankData(**fields)


def _checksum(body: bytes) -> bytes:
    return isal_zlib.crc32(body).to_bytes(_CHECKSUM, "little")


def without_large(data: RankData, large: Mapping[str, Callable[[], Table]]) -> RankData:
    """Return the rank with its large tables released; `large` loads them again on demand."""
    lazy = {name: LazyTable(large[name], len(getattr(data, name))) for name in LARGE}
    return msgspec.structs.replace(data, **lazy)
