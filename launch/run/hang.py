"""Says why a stalled pass hangs, from the record of its collectives: runs `rankscope hang` on the pass folder."""

import subprocess
import sys

from rankscope.conf import PassDir
from rankscope.conf.files import read_json

_LIMIT_S = 30.0
_SAYS_NOTHING = ("nothing_waits", "no_dump")


def why(pass_dir: PassDir) -> str | None:
    """Return the conclusion in words, and leave it in hang.json; None if the dumps tell nothing."""
    if not any(rank.flight.exists() for rank in pass_dir.ranks()):
        return None
    module = ["-m", "rankscope.conf.cli", "hang"]
    command = [sys.executable, *module, str(pass_dir.path), "--json", str(pass_dir.hang), "--quiet"]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False)
        found = read_json(pass_dir.hang)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    lines = found.get("lines") if isinstance(found, dict) else None
    if not isinstance(lines, list) or not lines or found.get("cause") in _SAYS_NOTHING:
        return None
    return str(lines[0])
