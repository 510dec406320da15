"""Reads a folder of NCCL Inspector files to columns: one row per collective and rank, with what could not be read.

The plugin loses records without saying so, and a job that ends in the middle cuts a line. So a line that cannot be read
is counted and left out, and nothing here concludes anything from what is absent.
"""

import gzip
import os
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

from rankscope.analysis.core.notices import AnalysisError, Notice
from rankscope.analysis.core.table import Column
from rankscope.analysis.read.inspector.lines import FORMATS, Line, Writer
from rankscope.conf.files import open_regular
from rankscope.conf.plain_text import path_text

_ENDINGS = (".log", ".log.gz", ".jsonl", ".jsonl.gz")
_MOST_FILES = 1 << 16
_MOST_LINE = 1 << 20  # verbose lines have up to 64 channels
_MOST_RECORDS = 1 << 24  # of all files together: 56 bytes each
_MOST_BYTES = 16 << 30  # of a file, decompressed
_MOST_GROUPS = 1 << 14
_HEAD = 1 << 16
_COLUMNS = ("process", "group", "rank", "kind", "seq", "bytes", "us", "timing")


class Process(msgspec.Struct, frozen=True, order=True):
    """A process of the job, by what its lines say."""

    host: str
    pid: int


class Communicator(msgspec.Struct, frozen=True):
    """A communicator by its id, which all its ranks write."""

    id: str
    n_ranks: int


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """What all files of a folder hold. Columns have one entry per collective and rank; words are positions in lists."""

    processes: list[Process]
    groups: list[Communicator]
    names: dict[str, str]  # id -> what the job calls the communicator
    kinds: list[str]  # as NCCL writes them: AllReduce
    columns: dict[str, Column]
    pairs: int  # sends and receives, which have no number that both sides share
    notices: list[Notice]


def is_inspector(folder: Path) -> bool:
    """Return whether a folder holds a file that begins as those of Inspector do."""
    return any(_begins_well(path) for path in _files(folder)[:8])


def _begins_well(path: Path) -> bool:
    try:
        with _opened(path) as file:
            head = file.read(_HEAD).partition(b"\n")[0]
        return b'"header"' in head and (b'"coll_perf"' in head or b'"p2p_perf"' in head)
    except (OSError, EOFError, zlib.error):
        return False


def _files(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.name.endswith(_ENDINGS) and path.is_file())
    return sorted(path for path in found if not path.is_symlink())[:_MOST_FILES]


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    with os.fdopen(open_regular(path), "rb") as raw:
        if path.suffix == ".gz":
            with gzip.open(raw) as file:
                yield file
        else:
            yield raw


def read(folder: Path, *, most: int = _MOST_RECORDS) -> Records:
    """Read every file below a folder, at most `most` records. Raises `AnalysisError` if no line can be read."""
    if not folder.is_dir():
        raise AnalysisError(f"{folder}: not a folder; give the one that NCCL_INSPECTOR_DUMP_DIR named")
    files = _files(folder)
    building = _Building(most // max(1, len(files)))
    for path in files:
        building.add(path)
    if not building.columns["seq"] and not building.pairs:
        raise AnalysisError(_why_none(folder, files, building.notices))
    return building.records()


def _why_none(folder: Path, files: list[Path], notices: list[Notice]) -> str:
    if notices:
        return notices[0].message
    if files:
        return f"{folder}: no log file in it has a line of NCCL Inspector; give the folder with its files"
    if any(folder.rglob("*.prom")):
        return (
            f"{folder}: has Inspector's files for Prometheus, which keep the last numbers only; "
            "record with NCCL_INSPECTOR_PROM_DUMP=0"
        )
    return (
        f"{folder}: has no file of NCCL Inspector (*.log, *.jsonl, also .gz); "
        "record with NCCL_PROFILER_PLUGIN and NCCL_INSPECTOR_ENABLE=1"
    )


class _Building:
    """Collects rows as compact arrays, because a file can have millions of lines."""

    def __init__(self, most: int) -> None:
        self.columns = {name: array("q") for name in _COLUMNS}
        self.pairs = 0
        self.notices: list[Notice] = []
        self._most = most  # of each file
        self._processes: dict[Process, int] = {}
        self._groups: dict[Communicator, int] = {}
        self._kinds: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._formats: Counter[str] = Counter()
        self._decoder = msgspec.json.Decoder(Line)

    def add(self, path: Path) -> None:
        """Read one file; what is wrong with it becomes a notice."""
        name, good, bad, first = path_text(path.name), 0, 0, ""
        try:
            for number, line in enumerate(_lines(path), 1):
                try:
                    self._take(path, self._decoder.decode(line))
                    good += 1
                except (ValueError, RecursionError) as error:
                    bad += 1
                    first = first or f"line {number}: {'longer than 1 MiB' if not line else _short(error)}"
                if good >= self._most:
                    self._say("records_left_out", name, f"{name}: only its first {good} records are read")
                    break
        except (OSError, EOFError, zlib.error) as error:
            if good:
                self._say("file_cut", name, f"{name}: cannot be read to its end ({_short(error)}); copy it again")
            else:
                self._say("file_unreadable", name, f"{name}: cannot be read ({_short(error)}); check the file")
        if bad and good:
            text = f"{name}: {bad} of {good + bad} lines are left out ({first}); the collectives in them are unknown"
            self._say("lines_damaged", name, text)
        elif bad and _begins_well(path):
            self._say("lines_damaged", name, f"{name}: no line can be read ({first}); record again, or remove the file")

    def _take(self, path: Path, line: Line) -> None:
        perf = line.coll_perf
        if perf is None:
            if line.p2p_perf is None:
                raise ValueError("it has neither coll_perf nor p2p_perf")
            self.pairs += 1
            return
        group = Communicator(line.header.id, line.header.n_ranks)
        if group not in self._groups and len(self._groups) >= _MOST_GROUPS:
            raise ValueError(f"more than {_MOST_GROUPS} communicators")
        if line.header.comm_name not in (None, "unknown", ""):
            self._names.setdefault(group.id, str(line.header.comm_name))
        self._formats[line.metadata.inspector_output_format_version or "none"] += 1
        row = (
            _code(self._processes, _process(path, line.metadata)),
            _code(self._groups, group),
            line.header.rank,
            _code(self._kinds, perf.coll),
            perf.coll_sn,
            perf.coll_msg_size_bytes,
            perf.coll_exec_time_us,
            perf.timing,
        )
        for name, value in zip(_COLUMNS, row, strict=True):
            self.columns[name].append(value)

    def _say(self, kind: str, file: str, message: str) -> None:
        self.notices.append(Notice(kind=kind, level="partial", file=file, message=message))

    def records(self) -> Records:
        unknown = sorted(set(self._formats) - set(FORMATS))
        if unknown:
            told = ", ".join(unknown[:4])
            text = f"format version {told} of Inspector is not known: its lines are read as those of {FORMATS[-1]}"
            self.notices.append(Notice(kind="unknown_format", message=text))
        return Records(
            processes=list(self._processes),
            groups=list(self._groups),
            names=self._names,
            kinds=list(self._kinds),
            columns={name: np.array(values, np.int64) for name, values in self.columns.items()},
            pairs=self.pairs,
            notices=self.notices,
        )


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; one that is too long is empty."""
    read = 0
    with _opened(path) as file:
        while line := file.readline(_MOST_LINE):
            read += len(line)
            whole = line.endswith(b"\n") or len(line) < _MOST_LINE
            while not whole:
                rest = file.readline(_MOST_LINE)
                read += len(rest)
                whole, line = rest.endswith(b"\n") or len(rest) < _MOST_LINE, b""
                if read > _MOST_BYTES:
                    break
            if line != b"\n":
                yield line
            if read > _MOST_BYTES:
                raise OSError(f"larger than {_MOST_BYTES >> 30} GiB")


def _process(path: Path, writer: Writer) -> Process:
    """Return the process of a line; a line that names none is that of its file."""
    if writer.hostname is None or writer.pid is None:
        return Process(path_text(path.name), 0)
    return Process(writer.hostname, writer.pid)


def _code(codes: dict[str, int] | dict[Process, int] | dict[Communicator, int], word: object) -> int:
    return codes.setdefault(word, len(codes))  # type: ignore[arg-type]


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
