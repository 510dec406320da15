"""Converts a validation error of msgspec to one line that names the key, the value and what is allowed."""

import re
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

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
    value, allowed = _value(data, path), _choices(hint)
    what = among(str(value), allowed) if allowed else _plain(what, path)
    return f"{path or 'config'}={value!r}: {what}"


def among(word: str, allowed: Sequence[str]) -> str:
    """Say what is allowed instead of `word`, the nearest first."""
    return f"{suggestion(word, allowed)}allowed are {', '.join(allowed)}"


def suggestion(word: str, known: Sequence[str]) -> str:
    """Return "did you mean ...? " for a word that is nearly a known one; otherwise nothing."""
    import difflib  # only for messages about mistakes

    near = [_SAME[word]] if _SAME.get(word) in known else difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}? " if near else ""


_SAME = {"gpu": "cuda"}  # another word for the same, though its letters are nearer to those of something else
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "array": "a list",
    "object": "keys with values",
    "null": "null",
}


def _plain(what: str, path: str) -> str:
    """Return what msgspec says about a type in words that a user knows."""
    found = re.fullmatch(r"Expected `([^`]*)`(?:, got `[^`]*`)?(?P<bound>.*)", what, re.DOTALL)
    if found is None:
        return f"{what[0].lower()}{what[1:]}"
    wanted = " or ".join(_KINDS.get(kind, kind) for kind in found[1].split(" | "))
    example = f", as in {path}=[a,b]" if "array" in found[1] else ""
    return f"must be {wanted}{found['bound']}{example}"


def _unknown(key: str, path: str, section: Any) -> str:
    names = [field.name for field in msgspec.structs.fields(section)]
    hint = suggestion(key, names).strip() or f"allowed are {', '.join(names)}"
    return f"{f'{path}.' if path else ''}{key}: unknown key; {hint}"


def _walk(schema: Any, path: str) -> tuple[Any, Any]:
    """Return the key's type at `path`, and the struct that holds the key (or the struct itself, if `path` is one)."""
    section: Any = schema
    hint: Any = schema
    for key in filter(None, re.split(r"[.\[]", path)):
        if key.endswith("]"):
            lists = [arg for arg in (hint, *get_args(hint)) if get_origin(arg) is list]
            hint = (get_args(lists[0] if lists else hint) or (hint,))[0]
            continue
        hint = get_type_hints(section, include_extras=True)[key]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            section = hint
    return section, hint


def _choices(hint: Any) -> list[str]:
    """Return the words that a key takes; with what else it takes, if it takes more. Empty if it takes no words."""
    if get_origin(hint) is Literal:
        return [str(arg) for arg in get_args(hint)]
    parts = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else ()
    words = [word for part in parts if get_origin(part) is Literal for word in _choices(part)]
    return words and words + [_KINDS[_name(part)] for part in parts if get_origin(part) is not Literal]


def _name(hint: Any) -> str:
    """Return what msgspec calls a type."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return {list: "array", NoneType: "null"}.get(get_origin(hint) or hint, getattr(hint, "__name__", "object"))


def _value(data: Any, path: str) -> Any:
    for key in filter(None, re.split(r"[.\[]", path)):
        if key.endswith("]"):
            number = key[:-1]  # "..." in a mapping, whose key msgspec does not say: then show all of it
            data = data[int(number)] if isinstance(data, list) and number.isdigit() else data
            continue
        data = data.get(key) if isinstance(data, Mapping) else None
    return data
