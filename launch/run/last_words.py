"""What the log of a rank says of its end: its last lines, or the words and frames of a crash. Nothing without a log."""

import re
from pathlib import Path

from rankscope.conf.files import text_of
from rankscope.launch.run.stuck import main_stack

LINES = 8  # of a log or traceback that are shown
_ABORTED = re.compile(r"(?m)^(?:[\w ]+\(\): .+|double free .+|corrupted .+|\s+what\(\): .+)$")


def last_lines(log: Path | None) -> str | None:
    return "\n".join(text_of(log).rstrip().splitlines()[-LINES:]) or None if log is not None else None


def first_line(path: Path | None) -> str:
    """Return the first line that is not blank."""
    lines = [line.strip() for line in text_of(path).splitlines() if line.strip()] if path is not None else []
    return lines[0][:200] if lines else "without output"


def crash(stderr: Path | None) -> str | None:
    """Return the Python frames of a rank that crashed in C code (innermost last), or None."""
    said = text_of(stderr) if stderr is not None else ""
    start = said.find("Fatal Python error")
    if start < 0:
        return None
    frames = main_stack("".join(re.findall(r"(?m)^(?:Thread |Current thread |  File ).*\n", said[start:])))
    return "\n".join(reversed(frames)) or None


def last_words(stderr: Path | None) -> str | None:
    """Return the last message of the C library or C++ before it ended the process, or None."""
    said = text_of(stderr).partition("Fatal Python error")[0] if stderr is not None else ""
    found = _ABORTED.findall(said)
    return found[-1].strip()[:120] if found else None
