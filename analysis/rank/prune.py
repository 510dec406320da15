"""Keeps a folder of cache entries below a size."""

import os
import shutil
from pathlib import Path


def prune(folder: Path, largest: int) -> None:
    """Remove the oldest entries of `folder` until all together have at most `largest` bytes."""
    try:
        entries = [(entry.stat().st_mtime, entry.path) for entry in os.scandir(folder) if entry.is_dir()]
        sizes = {entry: _size(entry) for _, entry in entries}
    except OSError:
        return
    total = sum(sizes.values())
    for _, entry in sorted(entries):
        if total <= largest:
            break
        shutil.rmtree(entry, ignore_errors=True)
        total -= sizes[entry]


def _size(folder: str) -> int:
    """Return the bytes of all files in a folder. Links are not followed."""
    return sum(
        _size(entry.path) if entry.is_dir(follow_symlinks=False) else entry.stat(follow_symlinks=False).st_size
        for entry in os.scandir(folder)
    )
