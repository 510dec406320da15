"""Reads and writes files of a run. A file is renamed from a temporary name, so that readers never see half of it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`, and rename it to `path` if the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, either completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def text_of(path: Path) -> str:
    """Return the text of a log, or an empty text if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def read_json(path: Path) -> Any:
    """Read JSON. Raises `OSError`, or `ValueError` if the text is not JSON or is nested too deep."""
    try:
        return json.loads(path.read_text())
    except RecursionError:
        raise ValueError(f"{path}: nested too deep") from None


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, completely or not at all. Raises `ValueError` for NaN and infinity."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")
