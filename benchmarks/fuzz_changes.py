"""Three mutators of recordings for the fuzzer of commands: bytes, structure and values.

Each changes one file of a recording. Structure drops, repeats, reorders, renames and retypes fields, records, tables,
columns and files. Values are huge numbers, NaN, poisonous text and wrong units.
"""

import gzip
import io
import json
import math
import random
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

POISON = "\x1b]0;owned\x07\x1b[2J[/x][link=http://x]|<img src=x onerror=alert(1)>$\\frac$=1+1\u202e\r\n`"
_DEEP: Any = 0
for _ in range(60):
    _DEEP = [_DEEP]
VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 7, 2**20, 2**31, 2**53 + 1, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30,
    -(10**30), 0.1, -0.0, 1e19, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf, "", "x", "0", "7", "-1", "1e400",
    "nan", "0x7f",
    "9" * 5000, "a" * 20_000, POISON, "a|b", "[/x]", "{0}%s", "$x$", "=1+1", "\ud800", "\x00", "../../x",
    "[0, 1]", "[0",
    "ProfilerStep#3", "ProfilerStep#" + "9" * 5000, "2026-13-45T99:99", [], {}, [[1]], [None], [{}], {"a": None},
    [0, 1], list(range(300)), _DEEP,
]  # fmt: skip
RAW = ["1e999", "-1e999", "00012", "1E5", "-", "NaN", "Infinity", "0.0000000000000000000001", "9" * 400, "tru", "1.5.2"]
UNITS = [0, -1, 1000, 0.001, 1e6, 1e-6, 1e9, 0.5, 3]
SECONDS = ("ts", "dur", "start", "end", "start_ns", "host_ns", "duration_ns", "enqueued_ns", "utcEpochNs")
ODD = ("fifo", "folder", "loop", "outside", "device")  # in place of a file
Change = Callable[[bytes, random.Random], bytes]


class Skipped(Exception):
    """The change does not fit this file."""


# --- bytes --------------------------------------------------------------------------------------------------------


def change_bytes(data: bytes, chance: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 5, 50])):
        at, size = chance.randrange(len(found) + 1), chance.choice([1, 2, 16, 200])
        kind = chance.randrange(6)
        if kind == 0:
            found[at : at + size] = b""
        elif kind == 1:
            found[at:at] = chance.randbytes(size)
        elif kind == 2:
            found[at : at + size] = chance.randbytes(len(found[at : at + size]))
        elif kind == 3:
            found[at:at] = found[at : at + size]
        elif kind == 4 and at < len(found):
            found[at] ^= 1 << chance.randrange(8)
        elif kind == 5 and chance.random() < 0.3:
            del found[at:]
    return bytes(found)


# --- trees: JSON and YAML -----------------------------------------------------------------------------------------


def change_tree(data: bytes, chance: random.Random, change: Callable[[Any, random.Random], Any]) -> bytes:
    document = change(json.loads(data), chance)
    text = json.dumps(document)
    return text.replace('"raw"', chance.choice(RAW)).encode() if '"raw"' in text else text.encode()


def places(value: Any, chance: random.Random) -> tuple[Any, Any]:
    """Return a container inside `value` and one of its keys; shallow ones as often as deep ones."""
    holder = value
    if not holder or not isinstance(holder, dict | list):
        raise Skipped
    while True:
        key = chance.choice(list(holder)) if isinstance(holder, dict) else chance.randrange(len(holder))
        inner = holder[key]
        stop = 0.1 if isinstance(inner, list) else 0.3
        if not inner or not isinstance(inner, dict | list) or chance.random() < stop:
            return holder, key
        holder = inner


def alike(document: Any, holder: Any, key: Any) -> Iterator[Any]:
    """Yield the containers like `holder` in the document: the events, or their arguments, that have this key."""
    events = document.get("traceEvents") if isinstance(document, dict) else document
    for event in events if isinstance(events, list) else ():
        for found in (event, event.get("args")) if isinstance(event, dict) else ():
            if isinstance(found, dict) and key in found and isinstance(holder, dict):
                yield found


def structure_of_tree(document: Any, chance: random.Random) -> Any:
    holder, key = places(document, chance)
    every = [holder, *alike(document, holder, key)] if chance.random() < 0.3 else [holder]
    kind = chance.randrange(8)
    for place in every:
        value = place[key]
        if kind == 0:
            del place[key]
            if isinstance(place, list):
                break
        elif kind == 1 and isinstance(place, dict):
            place[chance.choice(["x", "", "args", "name", str(key).upper()])] = place.pop(key)
        elif kind == 2:
            place[key] = chance.choice([[value], {"value": value}, str(value), json.dumps(value)])
        elif kind == 3:
            other, name = places(document, chance)
            place[key], other[name] = other[name], 0  # a move, so that no tree contains itself
        elif kind == 4 and isinstance(value, list):
            chance.shuffle(value)
        elif kind == 5 and isinstance(value, list) and value:
            value.extend(json.loads(json.dumps(chance.choices(value, k=chance.choice([1, 20, 300])))))
        elif kind == 6 and isinstance(value, list):
            del value[: chance.randrange(len(value) + 1)]
        elif kind == 7 and isinstance(value, list):
            value.reverse()
    return document


def values_of_tree(document: Any, chance: random.Random) -> Any:
    if chance.random() < 0.15:
        return _other_units(document, chance)
    holder, key = places(document, chance)
    every = [holder, *alike(document, holder, key)] if chance.random() < 0.4 else [holder]
    new = "raw" if chance.random() < 0.1 else chance.choice(VALUES)
    for place in every:
        if isinstance(place[key], str) and chance.random() < 0.5 and isinstance(new, str):
            place[key] += new
        else:
            place[key] = new
    return document


def _other_units(document: Any, chance: random.Random) -> Any:
    factor, offset = chance.choice(UNITS), chance.choice([0, 0, 1e9, -1e12, 2**53])
    names = chance.sample(SECONDS, chance.choice([1, 2, len(SECONDS)]))
    for name in names:
        for place in alike(document, {}, name):
            if isinstance(place[name], int | float):
                place[name] = place[name] * factor + offset
    return document


# --- SQLite -------------------------------------------------------------------------------------------------------


def change_database(data: bytes, chance: random.Random, statements: Callable[..., list[str]]) -> bytes:
    database = sqlite3.connect(":memory:", isolation_level=None)
    try:
        database.deserialize(data)
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = chance.choice(tables)
        columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
        column = chance.choice(columns)
        for statement in statements(table, column, chance.choice(columns), chance):
            value = chance.choice([item for item in VALUES if _fits(item)])
            database.execute(statement, {"value": value} if ":value" in statement else {})
        return database.serialize()
    except (sqlite3.Error, OverflowError, IndexError, UnicodeError, MemoryError):
        raise Skipped from None
    finally:
        database.close()


def _fits(value: Any) -> bool:
    return isinstance(value, str | float | None) or (isinstance(value, int) and abs(value) < 2**63)


def structure_of_database(table: str, column: str, other: str, chance: random.Random) -> list[str]:
    part = f"WHERE rowid % {chance.choice([2, 3, 7])} = 0"
    return chance.choice(
        [
            [f'DROP TABLE "{table}"'],
            [f'ALTER TABLE "{table}" RENAME TO "x{table}"'],
            [f'ALTER TABLE "{table}" DROP COLUMN "{column}"'],
            [f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column}""; --"'],
            [f'DELETE FROM "{table}" {chance.choice([part, ""])}'],
            [f'CREATE TABLE y AS SELECT * FROM "{table}" {part}', f'INSERT OR IGNORE INTO "{table}" SELECT * FROM y'],
            [f'UPDATE OR IGNORE "{table}" SET "{column}" = "{other}", "{other}" = "{column}" {part}'],
            [f'ALTER TABLE "{table}" RENAME TO y', f'CREATE VIEW "{table}" AS SELECT * FROM y'],
            [f'ALTER TABLE "{table}" RENAME TO y', f'CREATE TABLE "{table}" AS SELECT * FROM y ORDER BY random()'],
            [f'CREATE TRIGGER t AFTER INSERT ON "{table}" BEGIN DELETE FROM "{table}"; END'],
            [
                f'ALTER TABLE "{table}" DROP COLUMN "{column}"',
                f'ALTER TABLE "{table}" ADD COLUMN "{column}" GENERATED ALWAYS AS (hex("{other}") || abs(-1)) VIRTUAL',
            ],
            ["PRAGMA writable_schema = ON", f"UPDATE sqlite_master SET rootpage = {chance.randrange(9)} {part}"],
            ["PRAGMA writable_schema = ON", f"UPDATE sqlite_master SET sql = :value WHERE name = '{table}'"],
            ["PRAGMA writable_schema = ON", f"UPDATE sqlite_master SET type = 'view' WHERE name = '{table}'"],
            [f'CREATE INDEX i ON "{table}" ("{column}")', "PRAGMA user_version = -1"],
        ]
    )


def values_of_database(table: str, column: str, other: str, chance: random.Random) -> list[str]:
    part = chance.choice(["", f"WHERE rowid % {chance.choice([2, 5, 9])} = 0"])
    return chance.choice(
        [
            [f'UPDATE OR IGNORE "{table}" SET "{column}" = :value {part}'],
            [f'UPDATE OR IGNORE "{table}" SET "{column}" = "{column}" * {chance.choice(UNITS)} {part}'],
            [f'UPDATE OR IGNORE "{table}" SET "{column}" = "{column}" + {chance.choice([10**9, 2**62])} {part}'],
            [f'UPDATE OR IGNORE "{table}" SET "{column}" = "{column}" || :value {part}'],
            [f"UPDATE OR IGNORE \"{table}\" SET \"{column}\" = zeroblob({chance.choice([0, 5, 10**6])}) {part}"],
            [f"UPDATE OR IGNORE \"{table}\" SET \"{column}\" = CAST(x'ff00fe' AS TEXT) {part}"],
            ["UPDATE OR IGNORE StringIds SET value = value || :value"],
            ["UPDATE OR IGNORE StringIds SET value = :value " + part],
            ["UPDATE OR IGNORE NVTX_EVENTS SET text = text || :value"],
            ["UPDATE OR IGNORE META_DATA_EXPORT SET value = :value"],
        ]
    )  # fmt: skip


# --- Parquet ------------------------------------------------------------------------------------------------------


def structure_of_table(table: pa.Table, chance: random.Random) -> pa.Table:
    name = chance.choice(table.column_names)
    rows = list(range(len(table)))
    chance.shuffle(rows)
    other = table.rename_columns([f"{text}x" if text == name else text for text in table.column_names])
    doubled = table.append_column(name, table[name])
    made = [table.drop([name]), table.slice(0, 0), table.take(rows), other, doubled, pa.concat_tables([table, table])]
    made += [table.slice(0, 1), pa.concat_tables([table] * 200), table.select([])]
    return chance.choice(made)


def values_of_table(table: pa.Table, chance: random.Random) -> pa.Table:
    rows, name = len(table), chance.choice(table.column_names)
    columns: list[Any] = [
        pa.array([POISON] * rows), pa.nulls(rows), pa.array([2**63 - 1] * rows), pa.array([-(2**63)] * rows),
        pa.array([math.nan] * rows), pa.array([math.inf] * rows), pa.array([-1] * rows), pa.array([0] * rows),
        pa.array([1e308] * rows), pa.array([[1]] * rows), pa.array([True] * rows), pa.array([b"\xff"] * rows),
        pa.array([{"a": 1}] * rows, pa.struct([("a", pa.int8())])), pa.array([2**64 - 1] * rows, pa.uint64()),
        pa.array([chance.choice([0, 10**18, None]) for _ in range(rows)], pa.int64()),
        pa.array(["x"] * rows).dictionary_encode(), pa.array([0] * rows, pa.timestamp("ns")),
    ]  # fmt: skip
    return table.set_column(table.column_names.index(name), name, chance.choice(columns))


def change_table(data: bytes, chance: random.Random, change: Callable[..., Any]) -> bytes:
    try:
        table = change(pq.read_table(io.BytesIO(data)), chance)
        target = io.BytesIO()
        pq.write_table(table, target)
    except (pa.ArrowException, IndexError, ValueError, OSError, MemoryError):
        raise Skipped from None
    return target.getvalue()


# --- one mutation -------------------------------------------------------------------------------------------------


def changed(name: str, data: bytes, kind: str, chance: random.Random) -> bytes:
    """Return the file's bytes after one change of a kind. Raises `Skipped` if it does not fit."""
    if kind == "bytes":
        inside = name.endswith(".gz") and chance.random() < 0.8
        return gzip.compress(change_bytes(_unpacked(data), chance), 1) if inside else change_bytes(data, chance)
    structure = kind == "structure"
    if name.endswith(".sqlite"):
        return change_database(data, chance, structure_of_database if structure else values_of_database)
    if name.endswith(".parquet"):
        return change_table(data, chance, structure_of_table if structure else values_of_table)
    change = structure_of_tree if structure else values_of_tree
    try:
        if name.endswith(".gz"):
            return gzip.compress(change_tree(_unpacked(data), chance, change), 1)
        if name.endswith(".yaml"):
            return yaml.safe_dump(change(yaml.safe_load(data), chance)).encode()
        return change_tree(data, chance, change)
    except (ValueError, TypeError, KeyError, IndexError, yaml.YAMLError, RecursionError, OverflowError):
        raise Skipped from None


def _unpacked(data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        raise Skipped from None
