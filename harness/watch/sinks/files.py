"""The files of a watched run: JSON lines that survive a crash, Parquet once a part is complete.

Every line is handed to the system at once, in one write, so it stays if the process is killed. Only a crash of the
machine can lose the last seconds.
"""

import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.json

from rankscope.conf.files import write_parquet
from rankscope.conf.monitor_dir import MonitorDir, MonitorRankDir
from rankscope.harness.watch.parts import TIMES

SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("start_ns", pa.int64()),
        *((name, pa.float64()) for name in ("step_ms", *TIMES)),
        ("host_ms", pa.float64()),
        ("samples", pa.int64()),
        ("memory_peak_bytes", pa.int64()),
        ("first_of_epoch", pa.bool_()),
        ("host_ahead", pa.bool_()),
        ("traced", pa.bool_()),
    ]
)


class Lines:
    """A file of JSON lines; each call appends complete lines in one write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def write(self, *values: Any) -> None:
        if values:
            os.write(self._file, b"".join(msgspec.json.encode(value) + b"\n" for value in values))

    def close(self) -> None:
        os.close(self._file)


class Files:
    """Steps and statistics of this rank; events on rank 0."""

    def __init__(self, folder: MonitorDir, rank: int, part_steps: int) -> None:
        self._steps = StepFiles(folder.rank(rank), part_steps)
        self._statistics = Lines(folder.rank(rank).stats)
        self._events = Lines(folder.events) if rank == 0 else None

    def steps(self, lines: list[dict[str, Any]]) -> None:
        self._steps.write(lines)

    def stats(self, stats: dict[str, Any]) -> None:
        self._statistics.write(stats)

    def ranks(self, step: int, stats: list[dict[str, float]]) -> None:
        """Ignore the other ranks: each writes its own."""

    def event(self, event: dict[str, Any], text: str) -> None:
        if self._events is not None:
            self._events.write(event | {"time": time.time()})

    def close(self) -> None:
        self._steps.close()
        self._statistics.close()
        if self._events is not None:
            self._events.close()


class StepFiles:
    """The steps of one rank in parts: JSON lines while a part grows, Parquet once it is full."""

    def __init__(self, folder: MonitorRankDir, part_steps: int) -> None:
        folder.path.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._part_steps = part_steps
        self._lines: Lines | None = None
        self._count = 0
        self._packing: threading.Thread | None = None

    def write(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        if self._lines is None:
            self._lines = Lines(self._folder.part(rows[0]["step"]))
        self._lines.write(*rows)
        self._count += len(rows)
        if self._count >= self._part_steps:
            self._end_part()

    def close(self) -> None:
        """Pack what is left; returns when it is written."""
        if self._packing is not None:
            self._packing.join()
        if self._lines is not None:
            self._lines.close()
            pack(self._lines.path)  # not in a thread: none can be started while the interpreter ends
            self._lines = None

    def _end_part(self) -> None:
        assert self._lines is not None  # `write` has just used it
        self._lines.close()
        if self._packing is not None:
            self._packing.join()
        self._packing = threading.Thread(target=pack, args=(self._lines.path,), name="rankscope-pack")
        self._packing.start()
        self._lines, self._count = None, 0


def pack(path: Path) -> None:
    """Turn JSON lines into Parquet; removes the lines once the Parquet file is complete."""
    options = pyarrow.json.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="ignore")
    with path.open("rb") as file:  # Arrow takes only names in UTF-8
        table = pyarrow.json.read_json(file, parse_options=options)
    write_parquet(path.with_suffix(".parquet"), table)
    path.unlink()
