"""Keeps a folder of cache entries below a size. An entry is a file or a folder."""

import os
import shutil
from contextlib import suppress
from pathlib import Path


def prune(folder: Path, largest: int) -> None:
    """Remove the oldest entries of `folder` until all together have at most `largest` bytes."""
    try:
        entries = [(entry.stat(follow_symlinks=False).st_mtime, entry.path) for entry in os.scandir(folder)]
        sizes = {entry: _size(Path(entry)) for _, entry in entries}
    except OSError:
        return
    total = sum(sizes.values())
    for _, entry in sorted(entries):
        if total <= largest:
            break
        remove(Path(entry))
        total -= sizes[entry]


def remove(path: Path) -> None:
    """Remove a folder, a file or a link, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder. Links are not followed."""
    if path.is_dir() and not path.is_symlink():
        return sum(map(_size, path.iterdir()))
    return path.lstat().st_size
