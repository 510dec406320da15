"""`rankscope nsys-strip`: copies SQLite exports with everything that an analysis needs, and without private data.

It keeps kernels, copies, API calls, NVTX ranges, the strings that these use, the kind of GPU, the session's start and
the export's version. It removes environments (except RANK and WORLD_SIZE), command lines, paths, hosts, users, output,
and other processes.
"""

import os
import re
import sqlite3
from pathlib import Path
from urllib.parse import quote

import click

from rankscope.analysis.commands.common import run_command
from rankscope.analysis.core.notices import UnreadableTraceError
from rankscope.analysis.read.nsys.export import METADATA, Export
from rankscope.conf.command import complain, say
from rankscope.conf.contract import NO_NUMBERS, OK
from rankscope.conf.files import replacing

# Table: the rows to keep (SQL), and the columns to leave empty.
_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("1", ("mangledName",)),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("1", ()),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("1", ()),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("1", ()),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("1", ("callchainId",)),
    "NVTX_EVENTS": ("eventType IN (59, 60, 75)", ("jsonText", "jsonTextId", "category", "color")),
    "NVTX_PAYLOAD_SCHEMAS": ("1", ()),
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": ("1", ()),
    "NVTX_PAYLOAD_ENUMS": ("1", ()),
    "NVTX_PAYLOAD_ENUM_ENTRIES": ("1", ()),
    "TARGET_INFO_SESSION_START_TIME": ("1", ("localTime",)),
    "TARGET_INFO_GPU": ("1", ("busLocation", "uuid", "luid", "pwGpuId", "ctxswDevPath", "ctrlDevPath")),
    "ENUM_NSYS_EVENT_TYPE": ("1", ()),
    "ENUM_CUDA_MEMCPY_OPER": ("1", ()),
    "META_DATA_EXPORT": (f"name IN ({', '.join(map(repr, METADATA))})", ()),
    "EXPORT_META_DATA": (f"name IN ({', '.join(map(repr, METADATA))})", ()),
    "META_DATA_CAPTURE": (
        "name = 'PROCESS_0:ENVIRONMENT_VARIABLE' AND (value GLOB 'RANK=\"*' OR value GLOB 'WORLD_SIZE=\"*')",
        (),
    ),
}
_TYPE = re.compile(r"[A-Za-z ]{0,30}")  # of a column; the text could hold anything
_NAMES = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", "shortName"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"),
    ("NVTX_EVENTS", "textId"),
)


def strip(source: Path, target: Path) -> None:
    """Write the stripped copy of one export. Raises `UnreadableTraceError` if it is not an export, or `OSError`."""
    export = Export(source, source.name)
    try:
        with replacing(target) as temporary:
            database = sqlite3.connect(
                f"file:{quote(os.fsencode(temporary.resolve()))}", isolation_level=None, uri=True
            )
            try:
                _copy(export, database)
            except sqlite3.Error as error:
                text = f"cannot be copied ({error}); give another --out, or export it again"
                raise export.fail("damaged_export", text) from None
            finally:
                database.close()
    finally:
        export.close()


def _copy(export: Export, database: sqlite3.Connection) -> None:
    """Copy through the guarded reader: an export may come from anybody, and a database can hold programs."""
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("BEGIN")
    for table, (rows, emptied) in _TABLES.items():
        if not export.has(table):
            continue
        declared = export.declared(table)
        kept = ", ".join("NULL" if name in emptied else _quoted(name) for name in declared)
        columns = (f"{_quoted(name)} {kind if _TYPE.fullmatch(kind) else ''}" for name, kind in declared.items())
        database.execute(f"CREATE TABLE {_quoted(table)} ({', '.join(columns)})")
        marks = ", ".join("?" * len(declared))
        found = export.each(f"SELECT {kept} FROM {_quoted(table)} WHERE {rows} ORDER BY rowid")
        database.executemany(f"INSERT INTO {_quoted(table)} VALUES ({marks})", found)
    if export.has("StringIds", "id", "value"):
        database.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        chosen = [f"SELECT {_quoted(column)} FROM {table}" for table, column in _NAMES if export.has(table, column)]
        used = {row[0] for row in database.execute(" UNION ".join(chosen))} if chosen else set()
        texts = export.each("SELECT id, value FROM StringIds ORDER BY id")
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", (row for row in texts if row[0] in used))
    database.execute("COMMIT")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@click.command("rankscope nsys-strip")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder for the copies; created if missing."
)
def nsys_strip(files: tuple[Path, ...], out: Path) -> int:
    """Copy SQLite exports of Nsight Systems without their private data.

    FILES: exports (nsys export -t sqlite REPORT.nsys-rep). Names of kernels and NVTX ranges stay.
    """
    status = OK
    for file in files:
        target = out / file.name
        try:
            out.mkdir(parents=True, exist_ok=True)
            if target.exists():
                complain(f"rankscope nsys-strip: {target}: already exists; give another --out")
                status = NO_NUMBERS
                continue
            strip(file, target)
            say(f"{target}: {target.stat().st_size / 1e6:.2f} MB of {file.stat().st_size / 1e6:.2f} MB")
        except UnreadableTraceError as error:
            complain(f"rankscope nsys-strip: {error}")
            status = NO_NUMBERS
        except OSError as error:
            complain(f"rankscope nsys-strip: {error.filename}: {os.strerror(error.errno or 0)}")
            status = NO_NUMBERS
    return status


def main(argv: list[str]) -> int:
    """Run `rankscope nsys-strip`; returns the exit status."""
    return run_command(nsys_strip, argv)
