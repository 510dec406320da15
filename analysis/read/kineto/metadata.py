"""Checks the metadata of a Chrome trace while it is parsed."""

from collections.abc import Callable
from typing import Any

from rankscope.analysis.core.notices import Notice, UnreadableTraceError

_UNIQUE = ("distributedInfo", "baseTimeNanoseconds")  # a second, different value would shift or rename the rank


def unique_keys(label: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """Return an `object_pairs_hook` for json that refuses two different values of a key in `_UNIQUE`.

    It then raises `UnreadableTraceError`; `label` is the file's name in the message.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in items:
            if key in _UNIQUE and key in values and values[key] != value:
                raise UnreadableTraceError(
                    Notice(
                        kind="conflicting_duplicate_key",
                        level="error",
                        file=label,
                        message=f"{label}: {key} appears twice with different values; "
                        "the file was assembled incorrectly, record it again",
                        details={"key": key},
                    )
                )
            values[key] = value
        return values

    return pairs
