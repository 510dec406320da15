"""The recordings of tests/data that are kept as archives."""

import tarfile
from pathlib import Path

DATA = Path(__file__).parents[2] / "data"


def unpack(name: str, folder: Path) -> Path:
    """Unpack DATA/`name`.tar.xz into a folder, and return the folder."""
    with tarfile.open(DATA / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder
