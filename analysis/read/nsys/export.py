"""One SQLite export of Nsight Systems (2022.4 to 2026), read by the names of its tables and columns.

Input: a path. Output: numpy columns, only those asked for. An export creates a table only if it has rows for it. Tables
that hold environments, command lines or other processes are never read, except for the two variables RANK and
WORLD_SIZE.
"""

import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from rankscope.analysis.core.notices import Notice, UnreadableTraceError
from rankscope.analysis.core.table import UNKNOWN, Column
from rankscope.analysis.read.decode import short_name
from rankscope.analysis.read.nsys.guard import guard
from rankscope.conf.files import open_regular

KERNELS, GRAPHS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
PROCESS_BITS = 24  # the lower bits of a global id are the thread
KNOWN_MAJOR = 3  # of EXPORT_SCHEMA_VERSION: according to NVIDIA, a new major number is a rewrite
METADATA = (
    "EXPORT_SCHEMA_VERSION",
    "EXPORT_PRODUCT_VERSION",
    "EXPORT_PARAM_TIME_NORMALIZE",
    "EXPORT_CONFIG_TIME_SHIFT",
)
_MAGIC = b"SQLite format 3\0"
_AGAIN = "export it again: nsys export -t sqlite REPORT.nsys-rep"


class Export:
    """An open export. Every error it raises is an `UnreadableTraceError` with a one-line message."""

    def __init__(self, path: Path, label: str) -> None:
        self.label = label
        self._check_file(path)
        # immutable: the folder may be read-only, so SQLite must not create a lock or a journal next to the file.
        self._database = sqlite3.connect(f"file:{quote(os.fsencode(path.resolve()))}?mode=ro&immutable=1", uri=True)
        self._database.text_factory = lambda text: text.decode(errors="replace")
        guard(self._database, path.stat().st_size)
        names = self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")
        self._columns = {str(name): frozenset(self.declared(str(name))) for (name,) in names}
        self.metadata = self._metadata()

    def close(self) -> None:
        self._database.close()

    def fail(self, kind: str, what: str) -> UnreadableTraceError:
        """Return the error that says in one line why this file gives no numbers."""
        notice = Notice(kind=kind, level="partial", file=self.label, message=f"{self.label}: {what}")
        return UnreadableTraceError(notice)

    def has(self, table: str, *columns: str) -> bool:
        """Return whether the table exists with all these columns."""
        return table in self._columns and self._columns[table].issuperset(columns)

    def rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
        try:
            return self._database.execute(query, parameters).fetchall()
        except sqlite3.Error as error:
            raise self.fail("damaged_export", f"the database is damaged ({error}); {_AGAIN}") from None
        except UnicodeDecodeError:  # in SQLite's own error text
            raise self.fail("damaged_export", f"the database is damaged; {_AGAIN}") from None

    def each(self, query: str) -> Iterator[tuple[object, ...]]:
        """Yield the rows of a query, without holding all of them in memory."""
        try:
            yield from self._database.execute(query)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self.fail("damaged_export", f"the database is damaged ({error}); {_AGAIN}") from None

    def declared(self, table: str) -> dict[str, str]:
        """Return the declared type of each column of a table, in order."""
        quoted = table.replace('"', '""')
        return {str(row[1]): str(row[2]) for row in self.rows(f'PRAGMA table_info("{quoted}")')}

    def whole(self, value: object) -> int:
        """Return `value`, which must be a 64-bit integer; raise if it is not."""
        if type(value) is not int:  # any SQLite column can hold a value of any type
            raise self.fail("damaged_export", f"holds {str(value)[:20]!r} instead of a number; {_AGAIN}")
        return value

    def integers(
        self, table: str, required: Sequence[str], optional: Sequence[str] = (), where: str = "1"
    ) -> dict[str, Column]:
        """Return integer columns of a table in row order; `UNKNOWN` for null values and for missing columns."""
        if table not in self._columns:
            return {name: np.zeros(0, np.int64) for name in (*required, *optional)}
        missing = [name for name in required if name not in self._columns[table]]
        if missing:
            raise self.fail(
                "unknown_schema",
                f"table {table} has no column {', '.join(missing)} (schema {self.schema}); this rankscope does not "
                "know this version of the export: update it, or export with an older nsys",
            )
        present = [name for name in (*required, *optional) if name in self._columns[table]]
        chosen = ", ".join(f'COALESCE("{name}", {UNKNOWN})' for name in present)
        rows = self.rows(f'SELECT {chosen} FROM "{table}" WHERE {where} ORDER BY rowid')
        try:
            values = np.array(rows, np.int64).reshape(len(rows), len(present))
        except (ValueError, TypeError, OverflowError):
            raise self.fail("damaged_export", f"table {table} holds values that are not numbers; {_AGAIN}") from None
        found = {name: values[:, index] for index, name in enumerate(present)}
        absent = np.full(len(rows), UNKNOWN)
        return {name: found.get(name, absent) for name in (*required, *optional)}

    def strings(self, ids: Column) -> dict[int, str]:
        """Return the strings of these ids; an id without a string is left out."""
        wanted = [int(value) for value in np.unique(ids) if value != UNKNOWN]
        found: dict[int, str] = {}
        for at in range(0, len(wanted), 500):
            part = wanted[at : at + 500]
            marks = ",".join("?" * len(part))
            found |= {
                self.whole(key): short_name(str(value))
                for key, value in self.rows(f"SELECT id, value FROM StringIds WHERE id IN ({marks})", part)
            }
        return found

    def codes(self, table: str, known: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers of an `ENUM_` table by name; the known numbers if the export lacks the table."""
        if not self.has(table, "id", "name"):
            return dict(known)
        found = {str(name): self.whole(number) for number, name in self.rows(f"SELECT id, name FROM {table}")}
        return {name: found.get(name, number) for name, number in known.items()}

    def variable(self, name: str) -> int | None:
        """Return one integer from the target's environment; no other variable is read."""
        if not self.has("META_DATA_CAPTURE", "name", "value"):
            return None
        rows = self.rows(
            "SELECT value FROM META_DATA_CAPTURE WHERE name LIKE 'PROCESS_0:ENVIRONMENT%' AND value GLOB ?",
            (f'{name}="*"',),
        )
        match = re.search(r'"(\d{1,19})"$', str(rows[0][0])) if rows else None
        return int(match[1]) if match else None

    @property
    def schema(self) -> str:
        """The export's schema version, `unknown` if it states none."""
        return self.metadata.get("EXPORT_SCHEMA_VERSION", "unknown")

    @property
    def product(self) -> str | None:
        """The version of nsys that wrote the export."""
        return self.metadata.get("EXPORT_PRODUCT_VERSION")

    @property
    def newer(self) -> bool:
        """Whether the schema has a newer major version than this reader was written for."""
        major = self.schema.partition(".")[0]
        return major.isdecimal() and int(major[:9]) > KNOWN_MAJOR

    @property
    def session_start(self) -> int | None:
        """When the session began (Unix ns), None if the export does not say."""
        if not self.has("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
            return None
        rows = self.rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
        return self.whole(rows[0][0]) if rows and rows[0][0] is not None else None

    @property
    def origin(self) -> int | None:
        """The value to add to the export's times to get Unix nanoseconds, None if unknown.

        The times of a time-normalised export are already shifted by the session's start, those of others by the shift
        that was requested at export.
        """
        shift = self.metadata.get("EXPORT_CONFIG_TIME_SHIFT", "")
        start = self.session_start
        if start is not None and re.fullmatch(r"-?\d{1,19}", shift):
            return start - int(shift)  # in a normalised export the shift is the session's start
        return 0 if self.metadata.get("EXPORT_PARAM_TIME_NORMALIZE") == "true" else start

    @property
    def sms(self) -> int | None:
        """The number of SMs of each GPU; None if the export does not say, or if the host's GPUs differ."""
        if not self.has("TARGET_INFO_GPU", "smCount"):
            return None
        found = {row[0] for row in self.rows("SELECT smCount FROM TARGET_INFO_GPU")}
        count = found.pop() if len(found) == 1 else None
        return count if type(count) is int and count > 0 else None

    def _check_file(self, path: Path) -> None:
        """Refuse an incomplete database: SQLite itself would notice only when it reaches the missing pages."""
        with os.fdopen(open_regular(path, follow=True), "rb") as file:
            head = file.read(100)
        size = path.stat().st_size
        if size == 0:
            raise self.fail("empty_file", f"is empty; {_AGAIN}")
        if not head.startswith(_MAGIC):
            raise self.fail("not_an_export", f"is not an SQLite export of Nsight Systems; {_AGAIN}")
        page = int.from_bytes(head[16:18], "big")
        expected = int.from_bytes(head[28:32], "big") * (page if page > 1 else 65536)
        if size < expected:
            raise self.fail("truncated", f"is cut off: {size} of {expected} bytes; {_AGAIN}")

    def _metadata(self) -> dict[str, str]:
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):  # the second: 2022.4
            if self.has(table, "name", "value"):
                marks = ", ".join("?" * len(METADATA))
                query = f"SELECT name, value FROM {table} WHERE name IN ({marks})"
                return {str(name): str(value) for name, value in self.rows(query, METADATA)}
        if not self.has("StringIds", "id", "value"):
            raise self.fail("not_an_export", f"is a database, but not an export of Nsight Systems; {_AGAIN}")
        return {}
