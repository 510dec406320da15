"""What a rank left of its end: its rank.json, its log, and what torchrun redirected. Without any of it: nothing."""

import json
from pathlib import Path
from typing import Any

from rankscope.conf import PassDir
from rankscope.conf.run_dir import RankDir


def error_of(rank: RankDir) -> str | None:
    error = info_of(rank).get("error")
    return error if isinstance(error, str) else None


def info_of(rank: RankDir) -> dict[str, Any]:
    """Return the content of rank.json, empty if it cannot be read."""
    try:
        info = json.loads(rank.info.read_text())
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


def stream(pass_dir: PassDir, local_rank: int) -> Path | None:
    """Return the file to which torchrun redirected a rank's stderr."""
    return next(pass_dir.torchrun.glob(f"*/attempt_*/{local_rank}/stderr.log"), None)


def said_by(pass_dir: PassDir, local_rank: int) -> Path | None:
    """Return the redirected stderr of a rank; its stdout, if it only wrote there."""
    stderr = stream(pass_dir, local_rank)
    stdout = None if stderr is None else stderr.with_name("stdout.log")
    said_nothing = stdout is not None and stderr is not None and not stderr.stat().st_size
    return stdout if said_nothing and stdout is not None and stdout.is_file() else stderr


def log_of(rank: RankDir) -> str | None:
    """Return the path of the rank's own log, or None."""
    return str(rank.log) if rank.log.exists() else None
