"""rankscope's folder in the user's cache, and the paths of measured node ceilings in it."""

import atexit
import functools
import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

SCHEMA = 1  # version of a ceilings file


def user_folder() -> Path:
    """Return rankscope's folder in the user's cache; it may not exist yet.

    A user without a home folder, as in a container that was started with any uid, has a folder for this process alone.
    """
    root = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(root):  # the standard says to ignore any other
        return Path(root) / "rankscope"
    try:
        return Path.home() / ".cache" / "rankscope"
    except RuntimeError:
        return _of_this_process()


@functools.cache
def _of_this_process() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="rankscope-cache-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def is_private(folder: Path) -> bool:
    """Make a folder in `user_folder()`, and return whether only this user can write to it or put another in its place.

    What is read from such a folder is run (compiled code) or given as ours (pages). The user's own link is followed.
    """
    try:
        for path in (folder.parent, folder):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = path.stat()
            if found.st_mode & 0o022 or {found.st_uid, path.lstat().st_uid} != {os.getuid()}:
                return False
    except OSError:
        return False
    return True


def path_for(folder: Path, host: str, device: str, backend: str, world_size: int) -> Path:
    """Return the ceilings file of one host, device type, backend and number of ranks."""
    key = hashlib.sha256(repr((host, device, backend, world_size)).encode()).hexdigest()[:12]
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", f"{host}-{backend}")[:100]  # a recording states them: it may hold anything
    return folder / f"{plain}-{world_size}-{key}.json"


def cache_folder() -> Path:
    """Return the folder of ceilings in the user's cache; it may not exist yet."""
    return user_folder() / "ceilings"
