"""Reads and writes files of a run. A file is renamed from a temporary name, so that readers never see half of it.

A run folder may come from anybody. So its files are opened in one way: no FIFO or device, which could be waited for
without end, no link, which could show a file of the reader's, and no more than a stated size.
"""

import errno
import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MOST_BYTES = 64 << 20  # of a file that is read as a whole, such as rank.json
_MOST_DIGITS = 300  # of an integer; a double holds no larger number


@contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Name `path` in an `OSError` of the block that names no file, as those of many libraries, or `temporary`."""
    try:
        yield
    except OSError as error:
        if error.filename not in (None, str(temporary)):
            raise
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`, and rename it to `path` if the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path, temporary):
            yield temporary
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, either completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_where_asked(path: Path, text: str) -> None:
    """Write to a path that a user named: as `write_text`, but into what is no regular file (a pipe, /dev/stdout).

    A link is followed, because the user chose it.
    """
    if path.exists() and not path.is_file():
        with naming(path), path.open("w", encoding="utf-8") as file:
            file.write(text)
    else:
        write_text(path.resolve(), text)


def write_parquet(path: Path, table: Any) -> None:
    """Write an Arrow table, completely or not at all. Through an open file, as Arrow takes only names in UTF-8."""
    import pyarrow.parquet as pq

    with replacing(path) as temporary, temporary.open("wb") as file:
        pq.write_table(table, file, compression="zstd")


def text_of(path: Path) -> str:
    """Return the text of a log, or an empty text if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def read_bytes(path: Path, *, follow: bool = False, most: int = MOST_BYTES) -> bytes:
    """Read a regular file of at most `most` bytes, and a link only with `follow`. Raises `OSError`."""
    with os.fdopen(open_regular(path, follow=follow), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most >> 20} MiB", str(path))
    return data


def open_regular(path: Path, *, follow: bool = False) -> int:
    """Open a regular file for reading and return its descriptor, without waiting for a writer. Raises `OSError`."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a link; copy the file here", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def read_json(path: Path, *, follow: bool = False, most: int = MOST_BYTES) -> Any:
    """Read JSON; numbers that no file of ours holds (NaN, infinity, thousands of digits) are null.

    Raises `OSError`, or `ValueError` if the text is not JSON or is nested too deep.
    """
    try:
        data = read_bytes(path, follow=follow, most=most)
        return json.loads(data, parse_constant=lambda _: None, parse_float=_finite, parse_int=_whole)
    except RecursionError:
        raise ValueError(f"{path}: nested too deep") from None


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _whole(text: str) -> int | None:
    return int(text) if len(text) <= _MOST_DIGITS else None


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, completely or not at all. Raises `ValueError` for NaN and infinity."""
    write_text(path, json_text(value) + "\n")


def json_text(value: Any) -> str:
    """Return `value` as indented JSON in ASCII. Raises `ValueError` for NaN and infinity."""
    return json.dumps(value, indent=1, allow_nan=False)
