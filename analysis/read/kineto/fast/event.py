"""Second stage of the scanner: decodes the event at a position that `index` found into one row of int64.

Input: a window, its positions, the table of wanted keys, the classes of categories, the symbols. Output: the scratch
row, strings as symbol codes, and a bit mask of values whose type is wrong. Anything ambiguous is `ODD`: the msgspec
reader then takes the complete window.
"""

from typing import Any

import numpy as np
from numba import njit

from rankscope.analysis.read.kineto.fast import layout
from rankscope.analysis.read.kineto.fast.llvm import byte, int32, int64, put_int64
from rankscope.analysis.read.kineto.fast.symbols import blank, lookup, number, share, skip, symbol

GOES_ON = -1
_FIELD = layout.FIELD
_PHASE, _CATEGORY, _DURATION = _FIELD["phase"], _FIELD["category"], _FIELD["duration"]
_COUNT = len(layout.FIELDS)
_LONGEST = 8796093022208 * 1000  # ns: 2**43 us, up to which the msgspec reader's doubles are exact
_HAS_ESCAPES, _KEYS, _CLASSES = layout.HAS_ESCAPES, layout.KEYS, layout.CLASSES
_EVENT_MULTIPLIER, _ARGUMENT_MULTIPLIER = layout.EVENT_MULTIPLIER, layout.ARGUMENT_MULTIPLIER


@njit(inline="always")
def _has_escape(base: Any, at: Any, end: Any) -> Any:
    found = False
    for i in range(at, end):
        if byte(base, i) == 92:
            found = True
    return found


@njit(inline="always")
def _string(base: Any, at: Any, end: Any, entry: Any, scratch: Any, state: Any, table: Any) -> Any:
    """Store a string value (`at` to `end` between the quotes); return (status, bit of a wrong type)."""
    kind, field = entry & 255, entry >> 8
    if kind == layout.SYMBOL or kind == layout.CATEGORY:
        if kind == layout.CATEGORY and int64(scratch, _CATEGORY) != layout.UNKNOWN:
            return layout.ODD, 0  # a second category
        code = symbol(base, at, end - at, table)
        if code < 0:
            return layout.REHASH, 0
        put_int64(scratch, field, code)
        if kind == layout.CATEGORY and int64(int64(state, _CLASSES), code) == layout.UNSEEN:
            return layout.NEW_CATEGORY, 0
        return GOES_ON, 0
    if kind == layout.PHASE:
        c = byte(base, at) if end - at == 1 else 0
        escaped = int64(state, _HAS_ESCAPES) != 0 and _has_escape(base, at, end)
        if int64(scratch, _PHASE) != layout.UNKNOWN or c == 66 or c == 69 or escaped:
            return layout.ODD, 0  # a second phase, or half of a B/E pair
        put_int64(scratch, _PHASE, c)
        return GOES_ON, 0
    if kind == layout.SHAPES:
        put_int64(scratch, layout.SHAPES_SEEN, 1)
    return (layout.ODD, 0) if kind == layout.ARGUMENTS else (GOES_ON, 1 << field)


@njit(inline="always")
def _scalar(base: Any, at: Any, entry: Any, scratch: Any) -> Any:
    """Store a number, true, false or null; return (status, bit of a wrong type)."""
    kind, field = entry & 255, entry >> 8
    if kind == layout.SHAPES:
        put_int64(scratch, layout.SHAPES_SEEN, 1)
        return GOES_ON, 0
    c = byte(base, at)
    if kind == layout.PHASE or kind == layout.CATEGORY:
        if int64(scratch, field) != layout.UNKNOWN:
            return layout.ODD, 0
        if kind == layout.PHASE:
            put_int64(scratch, _PHASE, 0)
        return GOES_ON, 0
    if c == 110:  # null
        put_int64(scratch, field, layout.UNKNOWN)
        return GOES_ON, 0
    if (kind == layout.INTEGER or kind == layout.NANOSECONDS or kind == layout.SHARE) and c < 65:
        value, exact = share(base, at) if kind == layout.SHARE else number(base, at, kind)
        put_int64(scratch, field, value)
        if kind == layout.NANOSECONDS and (value <= -_LONGEST or (field == _DURATION and value >= _LONGEST)):
            exact = False
        return GOES_ON, 0 if exact else 1 << field
    return GOES_ON, 1 << field


@njit(inline="always")
def _is_dead(scratch: Any, state: Any) -> Any:
    """Return whether the event is certainly not wanted."""
    phase, category = int64(scratch, _PHASE), int64(scratch, _CATEGORY)
    if phase != layout.UNKNOWN and phase != 88:
        return True
    return category != layout.UNKNOWN and int64(int64(state, _CLASSES), category) == layout.SKIPPED


@njit(nogil=True)
def event(
    base: Any, end: Any, positions: Any, count: Any, k: Any, scratch: Any, state: Any, table: Any
) -> Any:  # fmt: skip
    """Decode the event that begins at entry `k` into the scratch row; return (status, next entry, wrong types)."""
    for field in range(_COUNT):
        put_int64(scratch, field, layout.UNKNOWN)
    keys, multiplier = int64(state, _KEYS), np.uint64(int64(state, _EVENT_MULTIPLIER))
    in_arguments = seen_arguments = dead = False
    mistyped = 0
    k += 1
    while k < count:
        p = int32(positions, k)
        if byte(base, p) == 125:
            k += 1
            if not in_arguments:
                return GOES_ON, k, mistyped
            in_arguments = False
            keys, multiplier = int64(state, _KEYS), np.uint64(int64(state, _EVENT_MULTIPLIER))
            continue
        if byte(base, p) != 34:
            return layout.ODD, k, mistyped
        if k + 1 >= count:
            return layout.CUT, k, mistyped
        q = int32(positions, k + 1)
        k += 2
        at = q + 1 if byte(base, q + 1) == 58 else blank(base, q + 1, end)
        if byte(base, at) != 58:
            return (layout.ODD if at < end else layout.CUT), k, mistyped
        at = blank(base, at + 1, end)
        if at >= end:
            return layout.CUT, k, mistyped
        if int64(state, _HAS_ESCAPES) != 0 and _has_escape(base, p + 1, q):
            return layout.ODD, k, mistyped
        entry = lookup(base, p + 1, q - p - 1, keys, multiplier)
        if dead and entry & 255 != layout.PHASE and entry & 255 != layout.CATEGORY and entry & 255 != layout.ARGUMENTS:
            entry = np.int64(-1)  # the keys that decide whether an event counts are still checked for duplicates
        c = byte(base, at)
        status, bit = GOES_ON, 0
        if c == 34:
            if k + 1 >= count:
                return layout.CUT, k, mistyped
            e = int32(positions, k + 1)
            k += 2
            c = byte(base, e + 1)
            if c != 44 and c != 125 and byte(base, blank(base, e + 1, end)) == 58:
                return layout.ODD, k, mistyped
            if entry >= 0:
                status, bit = _string(base, at + 1, e, entry, scratch, state, table)
        elif c == 123 or c == 91:
            if entry >= 0 and entry & 255 == layout.ARGUMENTS and (c != 123 or seen_arguments):
                return layout.ODD, k, mistyped
            if entry >= 0 and entry & 255 == layout.ARGUMENTS and not dead:
                in_arguments = seen_arguments = True
                k += 1
                keys += layout.SLOTS * layout.SLOT_WORDS * 8
                multiplier = np.uint64(int64(state, _ARGUMENT_MULTIPLIER))
                continue
            seen_arguments |= entry >= 0 and entry & 255 == layout.ARGUMENTS
            k = skip(base, positions, k, count, end)
            if k < 0:
                return (layout.CUT if k == -1 else layout.ODD), k, mistyped
            if entry >= 0 and entry & 255 != layout.ARGUMENTS:
                status, bit = _scalar(base, at, entry, scratch)
        elif entry >= 0:
            if entry & 255 == layout.ARGUMENTS:
                if c != 110 or seen_arguments:
                    return layout.ODD, k, mistyped
                seen_arguments = True
            else:
                status, bit = _scalar(base, at, entry, scratch)
        if status != GOES_ON:
            return status, k, mistyped
        mistyped |= bit
        if entry >= 0 and (entry & 255 == layout.PHASE or entry & 255 == layout.CATEGORY):
            dead = _is_dead(scratch, state)
    return layout.CUT, k, mistyped
