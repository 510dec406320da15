"""Keeps what `rankscope analyze` made, and gives it again if the same is asked about unchanged files.

An answer is a folder with `summary.json` and, if they were asked for, the reports, tables and figures. Its name is a
digest of everything that the answer depends on: all files below the given paths, the options, this program. A list with
the digest of each file tells a damaged answer from a complete one. Imports nothing that an answer from here does not
need.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from rankscope.analysis.core.json import Json
from rankscope.analysis.options import Options
from rankscope.analysis.rank.code_version import code_version
from rankscope.analysis.rank.prune import prune
from rankscope.conf.files import open_regular, read_bytes, replacing, write_json
from rankscope.conf.user_cache import cache_folder, is_private, user_folder

_SUMMARY, _LIST = "summary.json", "files.json"
_SMALLEST = 1 << 17  # bytes of input below which analysing again takes no longer
_MOST_FILES = 50_000  # below the given paths; counting more of them takes longer than it saves
_LARGEST = 1 << 30  # bytes of all answers; above, the oldest are removed
_CONVERTED = (".nsys-rep", ".qdstrm")  # what becomes of them depends on the installed Nsight Systems


class Answer(msgspec.Struct, frozen=True):
    """The files of one answer: their names below `folder`, `summary.json` first."""

    folder: Path
    names: list[str]

    def summary(self) -> Json:
        found: Json = json.loads(read_bytes(self.folder / _SUMMARY))
        return found

    @property
    def has_reports(self) -> bool:
        return "report.html" in self.names

    def place_in(self, folder: Path, put: Callable[[Path, Path], object] = shutil.copyfile) -> None:
        """Replace the files in `folder`, each as a whole; the summary comes last, when all others are there."""
        for name in [*self.names[1:], self.names[0]]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with replacing(folder / name) as temporary:
                put(self.folder / name, temporary)


@contextmanager
def new_folder(inside: Path) -> Iterator[Path]:
    """Yield an empty folder in the folder for results: the files are made in it, before they replace others.

    There it needs no room in the cache, which may be full.
    """
    inside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=inside, ignore_cleanup_errors=True) as made:
        yield Path(made)


def made_in(folder: Path) -> Answer:
    """Return the answer whose files are in `folder`."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return Answer(folder, [_SUMMARY, *(name for name in names if name not in (_SUMMARY, _LIST))])


def keep(key: str | None, made: Path | None, summary: Json) -> None:
    """Keep an answer under `key`: its summary, and the files that were made.

    A cache that cannot be written is not an error.
    """
    if key is None:
        return
    place = user_folder() / "answers" / key
    if not is_private(place.parent):
        return
    try:
        with tempfile.TemporaryDirectory(prefix=".new-", dir=place.parent, ignore_cleanup_errors=True) as aside:
            entry = Path(aside) / "entry"
            if made is not None:
                shutil.copytree(made, entry)
            entry.mkdir(exist_ok=True)
            write_json(entry / _SUMMARY, summary)
            write_json(entry / _LIST, {name: _digest(entry / name) for name in made_in(entry).names})
            if place.exists():
                place.rename(Path(aside) / "old")
            entry.rename(place)
        prune(place.parent, _LARGEST)
    except OSError:
        return


def kept(key: str | None) -> Answer | None:
    """Return the answer kept under `key`, None if there is none or it is damaged."""
    if key is None or not is_private(user_folder() / "answers"):
        return None
    folder = user_folder() / "answers" / key
    try:
        listed = msgspec.json.decode(read_bytes(folder / _LIST), type=dict[str, str])
        answer = made_in(folder)
        intact = {name: _digest(folder / name) for name in answer.names} == listed
    except (OSError, msgspec.MsgspecError):
        return None
    return answer if intact else None


def key_of(paths: Sequence[Path], options: Options) -> str | None:
    """Return the name under which an answer is kept; None if it should not be kept.

    A file counts with its path, size, time and number on the disk.
    """
    if not options.cache or options.cache_folder is not None:
        return None
    digest, size, count = hashlib.blake2b(digest_size=16), 0, 0
    extra = [cache_folder(), *([options.ceilings] if options.ceilings else [])]
    try:
        for given in (*paths, *extra):
            digest.update(repr(str(given.resolve())).encode())
            for path in _files(given):
                count += 1
                if count > _MOST_FILES or path.suffix in _CONVERTED:
                    return None
                stat = path.stat()
                size += stat.st_size
                digest.update(repr((str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino)).encode())
    except OSError:
        return None
    asked = [options.limits, options.borrow_sizes, options.only_steps, options.steps_from]
    digest.update(repr([*asked, sorted(options.only_ranks or ()), options.only_ranks is None]).encode())
    digest.update(code_version().encode())
    return digest.hexdigest() if size >= _SMALLEST else None


def _files(given: Path) -> Iterator[Path]:
    """Return the files at or below a path in a fixed order, without the reports of a run."""
    if not given.is_dir():
        yield from [given] if given.exists() else []
        return
    for folder, inner, names in os.walk(given):
        inner[:] = sorted(name for name in inner if not (Path(folder) == given and name == "analysis"))
        for name in sorted(names):
            if os.path.isfile(os.path.join(folder, name)):
                yield Path(folder) / name


def _digest(path: Path) -> str:
    with os.fdopen(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
