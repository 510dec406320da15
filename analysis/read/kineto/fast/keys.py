"""The event keys that the scanner wants, as hash tables without collisions in which `symbols.lookup` finds them."""

import functools
import itertools

import numpy as np

from rankscope.analysis.core.table import Column
from rankscope.analysis.read.kineto.fast import layout

_EVENT_KEYS = {
    "ph": ("phase", layout.PHASE),
    "cat": ("category", layout.CATEGORY),
    "name": ("name", layout.SYMBOL),
    "ts": ("start", layout.NANOSECONDS),
    "dur": ("duration", layout.NANOSECONDS),
    "pid": ("pid", layout.INTEGER),
    "tid": ("tid", layout.INTEGER),
    "args": ("phase", layout.ARGUMENTS),
}
_ARGUMENT_KEYS = {
    "External id": ("external_id", layout.INTEGER),
    "external id": ("external_id_before_1_12", layout.INTEGER),
    "correlation": ("correlation", layout.INTEGER),
    "device": ("device", layout.INTEGER),
    "stream": ("stream", layout.INTEGER),
    "bytes": ("bytes", layout.INTEGER),
    "est. achieved occupancy %": ("occupancy", layout.INTEGER),
    "blocks per SM": ("sm_share", layout.SHARE),
    "Collective name": ("collective", layout.SYMBOL),
    "In msg nelems": ("in_nelems", layout.INTEGER),
    "Out msg nelems": ("out_nelems", layout.INTEGER),
    "Group size": ("group_size", layout.INTEGER),
    "dtype": ("dtype", layout.SYMBOL),
    "Process Group Name": ("group", layout.SYMBOL),
    "Process Group Ranks": ("group_ranks", layout.SYMBOL),
    "Process Group Description": ("group_desc", layout.SYMBOL),
    "Seq": ("seq", layout.INTEGER),
    "Dst Rank": ("peer", layout.INTEGER),
    "Src Rank": ("peer", layout.INTEGER),
    "Input Dims": ("phase", layout.SHAPES),  # no field of its own: only that it is there counts
}


@functools.cache
def key_tables() -> tuple[Column, list[int]]:
    """Return the key tables of an event and of its arguments, concatenated, and their multipliers."""
    tables, multipliers = [], []
    for keys in (_EVENT_KEYS, _ARGUMENT_KEYS):
        entries = {key.encode(): kind + 256 * layout.FIELD[field] for key, (field, kind) in keys.items()}
        table, multiplier = _key_table(entries)
        tables.append(table)
        multipliers.append(multiplier)
    return np.concatenate(tables), multipliers


def _key_table(entries: dict[bytes, int]) -> tuple[Column, int]:
    """Find a multiplier for which no two wanted keys share a slot, and build the table with it."""
    whole = (1 << 64) - 1
    parts = {key: (int.from_bytes(key[:8], "little"), int.from_bytes(key[-8:], "little")) for key in entries}
    for seed in itertools.count(1):
        multiplier = (seed * 0x9E3779B97F4A7C15 & (1 << 62) - 1) | 1
        slots: dict[int, bytes] = {}
        for key, (first, last) in parts.items():
            mixed = first ^ ((last if len(key) > 8 else 0) * 31 & whole) ^ len(key)
            slots[(mixed * multiplier & whole) >> layout.SLOT_SHIFT] = key
        if len(slots) == len(entries):
            break
    table = np.zeros((layout.SLOTS, layout.SLOT_WORDS), np.uint64)
    table[:, 2] = 1 << 63  # no key is that long
    for slot, key in slots.items():
        first, last = parts[key]
        middle = int.from_bytes(key[8:16], "little") if len(key) > 16 else 0
        table[slot, :5] = (first, last if len(key) > 8 else 0, len(key), middle, entries[key])
    return table.ravel(), multiplier
