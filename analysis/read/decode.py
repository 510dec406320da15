"""Turns lists of decoded JSON values into numpy columns: exact nanoseconds, integers, codes."""

import hashlib
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from rankscope.analysis.core.table import UNKNOWN, Column

_DIGITS = re.compile(r"(?<!\d)-?\d{1,19}(?!\d)")
_INT64 = 1 << 63
_DIGITS_OF_INT64 = 15  # digits of microseconds that fit an int64 when converted to nanoseconds
EXACT_BELOW = float(1 << 43)  # us: below this, floor and fraction of a double give the nanoseconds exactly


def nanoseconds(values: list[Any]) -> Column:
    """Turn microseconds (numbers or text) into integer nanoseconds; `UNKNOWN` if there is no number.

    `round(us * 1000)` is wrong by a nanosecond for many values above 2**42 us. Converting floor and fraction
    separately is exact up to 2**43 us. A double cannot hold larger values exactly, so the reader passes them as text.
    """
    try:
        column = np.array(values)
    except ValueError:
        column = np.array(values, object)
    if column.ndim > 1:  # lists where numbers belong
        column = np.array(values, object)
    if column.dtype == np.int64 and ((column > -_INT64 // 1000) & (column < _INT64 // 1000)).all():
        return np.asarray(column * 1000)
    if column.dtype == np.float64 and np.isfinite(column).all():
        if not len(column) or np.abs(column).max() < EXACT_BELOW:
            whole = np.floor(column)
            return np.asarray(whole.astype(np.int64) * 1000 + np.rint((column - whole) * 1000).astype(np.int64))
    return np.array([_exact(value) for value in values], np.int64)


def _exact(value: Any) -> int:
    if isinstance(value, str):
        whole, _, fraction = value.partition(".")
        if len(fraction) <= 3 and (whole + fraction).isdecimal() and len(whole) <= _DIGITS_OF_INT64:
            return int(whole or 0) * 1000 + int(fraction.ljust(3, "0"))
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return UNKNOWN
    try:
        nanos = int((Decimal(value) * 1000).to_integral_value())
    except (InvalidOperation, OverflowError, ValueError):  # not a number, or not a finite one
        return UNKNOWN
    return nanos if abs(nanos) < _INT64 else UNKNOWN


def integers(values: Iterable[Any]) -> Column:
    """Turn values into int64; `UNKNOWN` for anything that is not an integer. Numbers in text count (`stream 7`)."""
    whole = [value if type(value) is int else _integer(value) for value in values]
    try:
        return np.array(whole, np.int64)
    except OverflowError:
        return np.array([value if abs(value) < _INT64 else UNKNOWN for value in whole], np.int64)


def _integer(value: Any) -> int:
    if isinstance(value, str):
        match = _DIGITS.search(value)
        return int(match[0]) if match else UNKNOWN
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return UNKNOWN


_LONGEST_NAME = 4000  # characters; kernels of nested templates have 3000, searching longer names takes seconds


def short_name(text: str) -> str:
    """Return a name of bounded length that still differs from every other name."""
    if len(text) <= _LONGEST_NAME:
        return text
    mark = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return f"{text[:_LONGEST_NAME]}... ({len(text)} characters, {mark})"


class Codes:
    """A dictionary encoding shared by all blocks of a file. `names`: its words are names, whose length is bounded."""

    def __init__(self, *, names: bool = True) -> None:
        self._names = names
        self._codes: dict[Any, int] = {None: -1}

    def encode(self, values: Iterable[Any]) -> Column:
        """Return the code of each value. New values get new codes."""
        codes = self._codes
        try:
            return np.array([codes.setdefault(value, len(codes) - 1) for value in values], np.int32)
        except TypeError:  # a list or an object where a string belongs
            return np.array([codes.setdefault(str(value), len(codes) - 1) for value in values], np.int32)

    @property
    def words(self) -> list[str]:
        """The values in the order of their codes."""
        texts = [str(value) for value in self._codes if value is not None]
        return [short_name(text) for text in texts] if self._names else texts
