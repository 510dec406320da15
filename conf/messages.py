"""Converts a validation error of msgspec to one line that names the key, the value and what is allowed."""

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)


class ConfigError(ValueError):
    """A configuration that cannot run; the message names the key, the value and what is allowed."""


def describe(error: msgspec.ValidationError, data: Mapping[str, Any], schema: type) -> str:
    """Return one line for `error`, which was raised when `data` was converted to `schema`."""
    match = _PATH.match(str(error))
    assert match is not None  # the pattern matches any text
    what, path = match["what"], (match["path"] or "").lstrip(".")
    section, hint = _walk(schema, path)
    unknown = re.search(r"unknown field `(.*)`", what)
    if unknown:
        return _unknown(unknown[1], path, section)
    allowed = _choices(hint)
    if allowed:
        what = f"allowed are {', '.join(allowed)}"
    return f"{path or 'config'}={_value(data, path)!r}: {what[0].lower()}{what[1:]}"


def _unknown(key: str, path: str, section: Any) -> str:
    import difflib  # only for messages about mistakes

    names = [field.name for field in msgspec.structs.fields(section)]
    near = difflib.get_close_matches(key, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(names)}"
    return f"{f'{path}.' if path else ''}{key}: unknown key; {hint}"


def _walk(schema: Any, path: str) -> tuple[Any, Any]:
    """Return the key's type at `path`, and the struct that holds the key (or the struct itself, if `path` is one)."""
    section: Any = schema
    hint: Any = schema
    for key in filter(None, re.split(r"[.\[]", path)):
        if key.endswith("]"):
            hint = (get_args(hint) or (hint,))[0]
            continue
        hint = get_type_hints(section, include_extras=True)[key]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            section = hint
    return section, hint


def _choices(hint: Any) -> list[str]:
    return [str(arg) for arg in get_args(hint)] if get_origin(hint) is Literal else []


def _value(data: Any, path: str) -> Any:
    for key in filter(None, re.split(r"[.\[]", path)):
        if key.endswith("]"):
            return data  # msgspec does not say which item, so show the complete list
        data = data.get(key) if isinstance(data, Mapping) else None
    return data
