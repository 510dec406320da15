"""Where results are kept between runs."""

import os
from pathlib import Path


def user_folder() -> Path:
    """Return rankscope's folder in the user's cache; it need not exist."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "rankscope"
