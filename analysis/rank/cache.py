"""Caches the results of reading a rank's files. Missing, outdated or broken entries are computed again.

An entry is a file, and for few ranks one more for each large table. Their names depend on all that they were made from:
the files (path, size, modification time, both ends), the reader, and this package's sources. Each is written elsewhere
and then renamed, so it is complete or absent.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rankscope.analysis.core import packed
from rankscope.analysis.core.table import Table
from rankscope.analysis.rank import store
from rankscope.analysis.rank.code_version import code_version
from rankscope.analysis.rank.prune import prune, remove
from rankscope.analysis.rank.rank_data import RankData
from rankscope.conf.files import open_regular, replacing
from rankscope.conf.user_cache import user_folder

_ENDS = 1 << 12  # bytes hashed at each end of a file
_SMALLEST = 1 << 17  # bytes of files below which reading them again is as fast
_LARGEST = 8 << 30  # bytes of all entries in the user's folder; above, the oldest entries are removed


def entry_of(files: Sequence[Path], labels: Sequence[str], reader: str, root: Path) -> Path | None:
    """Return the path of these files' entry, existing or not; None if the files are too small or unreadable."""
    digest = hashlib.blake2b(digest_size=16)
    size = 0
    try:
        for path, label in zip(files, labels, strict=True):
            file = open_regular(path, follow=True)
            try:
                stat = os.fstat(file)
                ends = os.pread(file, _ENDS, 0) + os.pread(file, _ENDS, max(0, stat.st_size - _ENDS))
            finally:
                os.close(file)
            size += stat.st_size
            digest.update(repr((os.path.realpath(path), label, stat.st_size, stat.st_mtime_ns)).encode() + ends)
    except OSError:
        return None
    digest.update(f"{reader} {code_version()}".encode())
    return root / "ranks" / digest.hexdigest() if size >= _SMALLEST else None


def load(entry: Path, again: Mapping[str, Callable[[], Table]]) -> RankData | None:
    """Return the rank that an entry holds, None if there is no valid one. `again` rebuilds tables that are damaged."""
    try:
        with os.fdopen(open_regular(entry), "rb") as file:
            text = file.read()
        return store.unpack(text, {name: _Stored(_table(entry, name), again[name]) for name in store.LARGE})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def save(entry: Path, data: RankData, *, tables: bool = True) -> bool:
    """Cache a rank, with its large tables if `tables`; return whether that was possible.

    A cache that cannot be written is not an error. Tables that it lacks are read from the traces if they are needed.
    """
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        for name in store.LARGE if tables else ():
            with _replacing(_table(entry, name)) as temporary:
                packed.write_table(temporary, getattr(data, name))
        with _replacing(entry) as temporary:
            temporary.write_bytes(store.pack(data))
    except (OSError, ValueError):
        return False
    return True


def _table(entry: Path, name: str) -> Path:
    return entry.with_name(f"{entry.name}.{name}.z")


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    with replacing(path) as temporary:
        yield temporary
        if path.is_dir():  # no entry; a file or a link is replaced
            remove(path)


def prune_user_folder() -> None:
    """Remove the oldest entries of the user's cache until the total size is within the limit."""
    prune(user_folder() / "ranks", _LARGEST)


class _Stored:
    """Loads one large table of an entry; rebuilds it from the traces if the file is damaged or missing."""

    def __init__(self, path: Path, again: Callable[[], Table]) -> None:
        self._path = path
        self._again = again

    def __call__(self) -> Table:
        try:
            return packed.read_table(self._path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return self._again()
