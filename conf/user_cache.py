"""rankscope's folder in the user's cache, and the paths of measured node ceilings in it."""

import hashlib
import os
import tempfile
from pathlib import Path

SCHEMA = 1  # version of a ceilings file


def user_folder() -> Path:
    """Return rankscope's folder in the user's cache; it may not exist yet. Without a home folder: a temporary one."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(root or Path.home() / ".cache") / "rankscope"
    except RuntimeError:  # no HOME, and no entry for this user: a container with an arbitrary uid
        return Path(tempfile.gettempdir()) / f"rankscope-{os.getuid()}"


def path_for(folder: Path, host: str, device: str, backend: str, world_size: int) -> Path:
    """Return the ceilings file of one host, device type, backend and number of ranks."""
    key = hashlib.sha256(repr((host, device, backend, world_size)).encode()).hexdigest()[:12]
    return folder / f"{host}-{backend}-{world_size}-{key}.json"


def cache_folder() -> Path:
    """Return the folder of ceilings in the user's cache; it may not exist yet."""
    return user_folder() / "ceilings"
