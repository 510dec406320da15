"""Files of a run: what is written is renamed from a temporary name beside it, so that no reader meets half of it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; it takes `path`'s name when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def text_of(path: Path) -> str:
    """Return what a log says, nothing where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def read_json(path: Path) -> Any:
    """Read JSON; raises `OSError`, or `ValueError` for what is no JSON or nested without end."""
    try:
        return json.loads(path.read_text())
    except RecursionError:
        raise ValueError(f"{path}: nested too deep") from None


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, whole or not at all; NaN and infinity are refused (ValueError)."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")
