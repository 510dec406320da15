"""The scanner's small tools: finding wanted keys, symbols for strings, parsing numbers, skipping containers."""

from typing import Any

import numpy as np
from numba import njit

from rankscope.analysis.core.sm_share import WHOLE
from rankscope.analysis.read.kineto.fast.layout import INTEGER, NANOSECONDS, SLOT_SHIFT, SLOT_WORDS
from rankscope.analysis.read.kineto.fast.llvm import (
    byte,
    int32,
    int64,
    kernel,
    put_byte,
    put_int32,
    put_int64,
    put_uint64,
    uint64,
    word,
)

_ONE = np.uint64(1)
_CROWDED = 32  # slots in a row with other strings, after which a string gets another place
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@njit(inline="always")
def _head(base: Any, at: Any, length: Any) -> Any:
    """Return the first 8 bytes of a string as one number, zero after its end."""
    value = word(base, at)
    if length < 8:
        value &= (_ONE << np.uint64(8 * length)) - _ONE
    return value


@njit(inline="always")
def lookup(base: Any, at: Any, length: Any, keys: Any, multiplier: Any) -> Any:
    """Return the entry of a key, -1 if it is not wanted."""
    first = _head(base, at, length)
    last = word(base, at + length - 8) if length > 8 else np.uint64(0)
    slot = np.int64(((first ^ (last * np.uint64(31)) ^ np.uint64(length)) * multiplier) >> np.uint64(SLOT_SHIFT))
    slot *= SLOT_WORDS
    if uint64(keys, slot) != first or uint64(keys, slot + 1) != last or uint64(keys, slot + 2) != np.uint64(length):
        return np.int64(-1)
    if length > 16 and uint64(keys, slot + 3) != word(base, at + 8):
        return np.int64(-1)
    return np.int64(uint64(keys, slot + 4))


@njit(inline="always")
def _hash(base: Any, at: Any, length: Any, stride: Any) -> Any:
    """Return a hash of the ends of a string and of 8 bytes every `stride` bytes; 8: of all of it."""
    hashed = (_head(base, at, length) ^ np.uint64(length)) * _MULTIPLIER
    if length > 8:
        hashed = (hashed ^ (hashed >> np.uint64(29)) ^ word(base, at + length - 8)) * _MULTIPLIER
        for i in range(8, length - 8, stride):
            hashed = (hashed ^ (hashed >> np.uint64(31)) ^ word(base, at + i)) * _MULTIPLIER
    return hashed ^ (hashed >> np.uint64(32))


@njit
def symbol(base: Any, at: Any, length: Any, table: Any) -> Any:
    """Return the code of a string, storing it if it is new; -1: the table must grow first.

    `table` holds addresses and sizes: hashes, codes, mask, arena, offsets, count, bytes used.
    """
    hashes, codes, mask, arena, offsets = (
        int64(table, 0), int64(table, 1), int64(table, 2), int64(table, 3), int64(table, 4),
    )  # fmt: skip
    hashed = _hash(base, at, length, np.int64(24))
    slot = np.int64(hashed & np.uint64(mask))
    tried = 0
    while True:
        code = int32(codes, slot)
        if code < 0:
            count, used = int64(table, 5), int64(table, 6)
            if count * 2 > mask or used + length + 64 > int64(table, 7):
                return np.int64(-1)
            for i in range(length):
                put_byte(arena, used + i, byte(base, at + i))
            put_int64(offsets, count + 1, used + length)
            put_int32(codes, slot, count)
            put_uint64(hashes, slot, hashed)
            put_int64(table, 5, count + 1)
            put_int64(table, 6, used + length)
            return count
        if uint64(hashes, slot) == hashed:
            start = int64(offsets, code)
            if int64(offsets, code + 1) - start == length and _same(base, at, arena, start, length):
                return code
        slot = (slot + 1) & mask
        tried += 1
        if tried == _CROWDED:  # many strings that differ only where the hash did not look
            hashed = _hash(base, at, length, np.int64(8))
            slot = np.int64(hashed & np.uint64(mask))


@njit(inline="always")
def _same(base: Any, at: Any, arena: Any, start: Any, length: Any) -> Any:
    i = 0
    while i + 8 <= length:
        if word(base, at + i) != word(arena, start + i):
            return False
        i += 8
    return i == length or _head(base, at + i, length - i) == _head(arena, start + i, length - i)


@njit(inline="always")
def number(base: Any, at: Any, kind: Any) -> Any:
    """Return (value, whether it is exact): integers unchanged, microseconds as nanoseconds."""
    i = at
    negative = byte(base, i) == 45
    if negative:
        i += 1
    value = np.int64(0)
    begin = i
    c = byte(base, i)
    if negative and c == 48 and kind == INTEGER:
        return value, False  # -0 is a float
    while c >= 48 and c <= 57:
        value = value * 10 + (c - 48)
        i += 1
        c = byte(base, i)
    digits = i - begin
    if kind == NANOSECONDS:
        value *= 1000
        if digits > 15:
            return value, False
        if c == 46:
            scale = np.int64(100)
            i += 1
            c = byte(base, i)
            while c >= 48 and c <= 57:
                if scale == 0:
                    return value, False
                value += scale * (c - 48)
                scale //= 10
                i += 1
                c = byte(base, i)
    elif digits > 18 or c == 46:
        return value, False
    return -value if negative else value, not (c == 101 or c == 69)


@njit(inline="always")
def share(base: Any, at: Any) -> Any:
    """Return (value, whether it is exact): a share, at most 1, as an integer in units of 1 / `WHOLE`."""
    i, value, beyond = at, np.int64(0), False
    c = byte(base, i)
    while c >= 48 and c <= 57:
        beyond |= c != 48
        i += 1
        c = byte(base, i)
    if i == at:
        return value, False  # a sign
    if c == 46:
        scale = np.int64(WHOLE)
        i += 1
        c = byte(base, i)
        while c >= 48 and c <= 57:
            scale //= 10
            if scale == 0 and not beyond:
                return value, False
            value += scale * (c - 48)
            i += 1
            c = byte(base, i)
    return np.int64(WHOLE) if beyond else value, not (c == 101 or c == 69)


@njit(inline="always")
def blank(base: Any, at: Any, end: Any) -> Any:
    """Return the first position from `at` on that is not white space."""
    while byte(base, at) <= 32 and at < end:
        at += 1
    return at


@njit
def skip(base: Any, positions: Any, k: Any, count: Any, end: Any) -> Any:
    """Return the entry after the container that begins at entry `k`; -1: it does not end here, -2: it is odd."""
    kinds = np.uint64(0)  # one bit per level: 1 means an object
    depth = 0
    while True:
        if k >= count:
            return np.int64(-1)
        p = int32(positions, k)
        c = byte(base, p)
        in_object = (kinds & _ONE) != 0
        k += 1
        if c == 34:
            if k >= count:
                return np.int64(-1)
            after = blank(base, int32(positions, k) + 1, end)
            k += 1
            if (byte(base, after) == 58) != in_object:
                return np.int64(-2)
            # The key's value: handle a string here; a scalar has no entry, a container comes next.
            if in_object:
                after = blank(base, after + 1, end)
                if byte(base, after) == 34:
                    if k + 1 >= count:
                        return np.int64(-1)
                    if byte(base, blank(base, int32(positions, k + 1) + 1, end)) == 58:
                        return np.int64(-2)
                    k += 2
        elif c == 123 or c == 91:
            if depth >= 60:
                return np.int64(-2)
            depth += 1
            kinds = (kinds << _ONE) | (_ONE if c == 123 else np.uint64(0))
        elif c == 125 or c == 93:
            if (c == 125) != in_object:
                return np.int64(-2)
            kinds >>= _ONE
            depth -= 1
            if depth == 0:
                return k
        elif in_object:
            return np.int64(-2)


@kernel(5)
def rehash(hashes: Any, codes: Any, count: Any, table: Any, size: Any) -> Any:
    """Put the symbols of `count` slots into a larger, empty table of `size` slots; `table` holds its two addresses."""
    new_hashes, new_codes = int64(table, 0), int64(table, 1)
    for at in range(count):
        code = int32(codes, at)
        if code >= 0:
            slot = np.int64(uint64(hashes, at) & np.uint64(size - 1))
            while int32(new_codes, slot) >= 0:
                slot = (slot + 1) & (size - 1)
            put_int32(new_codes, slot, code)
            put_uint64(new_hashes, slot, uint64(hashes, at))
    return 0
