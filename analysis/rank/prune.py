"""Keeps a folder of cache entries below a size."""

import shutil
from pathlib import Path


def prune(folder: Path, largest: int) -> None:
    """Remove the oldest entries of `folder` until all together have at most `largest` bytes."""
    try:
        entries = [(entry.stat().st_mtime, entry) for entry in folder.iterdir()]
        sizes = {entry: sum(file.stat().st_size for file in entry.rglob("*") if file.is_file()) for _, entry in entries}
    except OSError:
        return
    total = sum(sizes.values())
    for _, entry in sorted(entries):
        if total <= largest:
            break
        shutil.rmtree(entry, ignore_errors=True)
        total -= sizes[entry]
