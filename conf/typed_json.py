"""Reads JSON objects from a run folder or a cache: values of another type than stated are left out.

Such a file may come from anybody, or from another version. So only the numbers that need such a value are unknown.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from rankscope.conf.files import MOST_BYTES, read_json

Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Real = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]
Number = Annotated[float, msgspec.Meta(ge=0, le=1e30)]


def read_object(path: Path, types: Mapping[str, Any], *, most: int = MOST_BYTES) -> dict[str, Any]:
    """Return an object's values that have their type in `types`, and those that `types` does not name.

    Raises `OSError`, or `ValueError` if the file is no JSON object.
    """
    raw = read_json(path, most=most)
    if not isinstance(raw, dict):
        raise ValueError(f"{path}: not an object")
    return {key: value for key, value in raw.items() if key not in types or fits(value, types[key])}


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value that was read from JSON has this type, within its limits."""
    try:
        msgspec.convert(value, kind)
    except (ValueError, OverflowError, RecursionError):  # also of half a surrogate instead of a number or a choice
        return False
    return True
