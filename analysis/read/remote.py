"""Paths that are URLs (s3://, gs://, ...), through fsspec: fetched into the user's cache, or published when written.

Credentials come from where each storage's own tools look for them (environment, configuration, instance roles). They
are never written, and a URL that contains credentials is refused.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankscope.analysis.core.notices import AnalysisError
from rankscope.conf.files import replacing, write_json
from rankscope.conf.typed_json import read_object
from rankscope.conf.user_cache import user_folder

_WANTED = (
    ".json",
    ".json.gz",
    ".pftrace",
    ".pftrace.gz",
    ".tmp",
    ".sqlite",
    ".nsys-rep",
    ".qdstrm",
    ".parquet",
    ".yaml",
)
_STATE = ".fetched.json"  # size and version of each remote file that was copied


def is_url(text: str) -> bool:
    """Return whether a path is a URL of remote storage."""
    return "://" in text


def fetch(url: str) -> Path:
    """Return a local copy of a folder or file. Only what changed since the last fetch is copied again.

    Raises `AnalysisError` with a one-line message if it cannot be read.
    """
    storage, root = _open(url)
    target = user_folder() / "remote" / hashlib.blake2b(url.rstrip("/").encode(), digest_size=12).hexdigest()
    with _one_line(url):
        listed = {name: entry for name, entry in storage.find(root, detail=True).items() if name.endswith(_WANTED)}
        if not listed:
            raise AnalysisError(f"{url}: no trace, report or run folder there (the listing is empty)")
        base = root if storage.isdir(root) else root.rpartition("/")[0]
        _copy(storage, base, listed, target)
    return target / _inside(base, root) if base != root else target


def _copy(storage: Any, base: str, listed: dict[str, Any], target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    try:
        known = read_object(target / _STATE, {})
    except (OSError, ValueError):
        known = {}
    state = {}
    for name, entry in listed.items():
        inside = _inside(base, name)
        mark = [entry.get("size"), str(entry.get("ETag") or entry.get("mtime") or entry.get("LastModified") or "")]
        place = target / inside
        if known.get(inside) != mark or not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            with replacing(place) as temporary:
                storage.get_file(name, str(temporary))
        state[inside] = mark
    for gone in set(known) - set(state):
        (target / gone).unlink(missing_ok=True)
    write_json(target / _STATE, state)


def _inside(base: str, name: str) -> str:
    """Return a name relative to its folder. Refuse one that leaves the folder: others chose the names."""
    inside = name.removeprefix(base).lstrip("/")
    if os.path.isabs(inside) or ".." in inside.split("/"):
        raise AnalysisError(f"{name}: this name points outside its folder, so it was not read")
    return inside


@contextlib.contextmanager
def published(url: str) -> Iterator[Path]:
    """Give a local folder, and upload its contents to `url` when the block ends."""
    storage, root = _open(url)
    with tempfile.TemporaryDirectory(prefix="rankscope-") as folder:
        yield Path(folder)
        with _one_line(url):
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file():
                    storage.put_file(str(path), f"{root.rstrip('/')}/{path.relative_to(folder).as_posix()}")


def _open(url: str) -> tuple[Any, str]:
    scheme, _, rest = url.partition("://")
    if "@" in rest.split("/")[0]:
        raise AnalysisError(f"{scheme}://...@...: credentials in a URL end up in logs; set them in the environment")
    try:
        import fsspec

        storage, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        package = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}.get(scheme, "rankscope[remote]")
        raise AnalysisError(f"{url}: {error.name or package} is not installed; pip install {package}") from None
    except ValueError as error:
        raise AnalysisError(f"{url}: {error}") from None
    return storage, str(root)


@contextlib.contextmanager
def _one_line(url: str) -> Iterator[None]:
    """Turn any storage error into one line. Each storage has its own error classes, but all have a useful text."""
    try:
        yield
    except AnalysisError:
        raise
    except Exception as error:  # botocore, aiohttp, google.auth, ... share no base class
        text = str(error).strip().splitlines() or [type(error).__name__]
        if isinstance(error, FileNotFoundError):  # its text is only a name, in a different form for each storage
            text = ["not found"]
        raise AnalysisError(f"{url}: {text[0]}; check the name and the credentials in the environment") from None
