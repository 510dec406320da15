"""Third stage of the scanner: writes the events that `event` decodes as rows of int64, into one buffer per class.

Input: a window, its positions, the table of wanted keys, the classes of categories, the symbols. Output: the rows, and
how the scan ended: an ambiguous event stops it (`ODD`).
"""

from typing import Any

from numba import njit

from rankscope.analysis.read.kineto.fast import layout
from rankscope.analysis.read.kineto.fast.event import GOES_ON, event
from rankscope.analysis.read.kineto.fast.llvm import byte, int32, int64, kernel, put_int64
from rankscope.analysis.read.kineto.fast.symbols import blank, symbol

_FIELD = layout.FIELD
_PHASE, _CATEGORY, _NAME, _PID, _TID = (_FIELD[name] for name in ("phase", "category", "name", "pid", "tid"))
_START, _DURATION, _CORRELATION = _FIELD["start"], _FIELD["duration"], _FIELD["correlation"]
_DEVICE, _STREAM, _BYTES, _COLLECTIVE = (_FIELD[name] for name in ("device", "stream", "bytes", "collective"))
_OCCUPANCY, _SM_SHARE = _FIELD["occupancy"], _FIELD["sm_share"]
_EXTERNAL, _EXTERNAL_OLD = _FIELD["external_id"], _FIELD["external_id_before_1_12"]
_COUNT = len(layout.FIELDS)
_KEY_PID, _KEY_TID, _LAST_PID, _LAST_TID, _LAST_THREAD = range(_COUNT, _COUNT + 5)
# Fields whose type must be correct, one bit each.
_ALWAYS = 1 << _NAME | 1 << _START | 1 << _DURATION | 1 << _COLLECTIVE
_OF_COLLECTIVE = (1 << _COUNT) - (1 << _COLLECTIVE)
_OF_THREAD = 1 << _PID | 1 << _TID
_OF_EXTERNAL = 1 << _EXTERNAL | 1 << _EXTERNAL_OLD
_OF_LAUNCH = 1 << _CORRELATION | 1 << _BYTES | 1 << _OCCUPANCY | 1 << _SM_SHARE
_OF_DEVICE = _ALWAYS | _OF_LAUNCH | _OF_EXTERNAL | 1 << _DEVICE | 1 << _STREAM
_CAPACITY, _OUT, _ROWS, _BEFORE = layout.CAPACITY, layout.OUT, layout.ROWS, layout.BEFORE
_CLASSES = layout.CLASSES
_AT_ENTRY, _CUT_AT, _FIELDS_OF_CALL = layout.AT_ENTRY, layout.CUT_AT, len(layout.COLLECTIVE_ROW)


@njit(inline="always")
def _thread(scratch: Any, table: Any) -> Any:
    """Return the symbol of the pair (pid, tid), -1 if the table must grow first."""
    pid, tid = int64(scratch, _PID), int64(scratch, _TID)
    if pid == int64(scratch, _LAST_PID) and tid == int64(scratch, _LAST_TID):
        return int64(scratch, _LAST_THREAD)
    put_int64(scratch, _KEY_PID, pid)
    put_int64(scratch, _KEY_TID, tid)
    code = symbol(scratch + 8 * _KEY_PID, 0, 16, table)
    if code >= 0:
        put_int64(scratch, _LAST_PID, pid)
        put_int64(scratch, _LAST_TID, tid)
        put_int64(scratch, _LAST_THREAD, code)
    return code


@njit(inline="always")
def _put_common(scratch: Any, out: Any, cap: Any, row: Any) -> Any:
    put_int64(out, row, int64(scratch, _START))
    put_int64(out, cap + row, int64(scratch, _DURATION))
    put_int64(out, cap * 2 + row, int64(scratch, _NAME))


@njit(inline="always")
def _external(scratch: Any) -> Any:
    current = int64(scratch, _EXTERNAL)
    return current if current != layout.UNKNOWN else int64(scratch, _EXTERNAL_OLD)


@njit(nogil=True)
def _put_device(scratch: Any, out: Any, cap: Any, row: Any, activity: Any, mistyped: Any) -> Any:
    """Write a device row; return whether every value is certain."""
    device, stream = int64(scratch, _DEVICE), int64(scratch, _STREAM)
    if device == layout.UNKNOWN:
        device = int64(scratch, _PID)
        mistyped |= (mistyped >> _PID & 1) << _DEVICE
    if stream == layout.UNKNOWN:
        stream = int64(scratch, _TID)
        mistyped |= (mistyped >> _TID & 1) << _STREAM
    _put_common(scratch, out, cap, row)
    put_int64(out, cap * 3 + row, activity)
    put_int64(out, cap * 4 + row, int64(scratch, _CORRELATION))
    put_int64(out, cap * 5 + row, _external(scratch))
    put_int64(out, cap * 6 + row, device)
    put_int64(out, cap * 7 + row, stream)
    put_int64(out, cap * 8 + row, int64(scratch, _BYTES))
    put_int64(out, cap * 9 + row, int64(scratch, _OCCUPANCY))
    put_int64(out, cap * 10 + row, int64(scratch, _SM_SHARE))
    return mistyped & _OF_DEVICE == 0


@njit(nogil=True)
def _put_call(scratch: Any, out: Any, cap: Any, row: Any, of_row: Any) -> Any:
    put_int64(out, row, of_row)
    for field in range(_FIELDS_OF_CALL - 1):
        put_int64(out, cap * (field + 1) + row, int64(scratch, _COLLECTIVE + field))


@njit(nogil=True)
def _put(scratch: Any, state: Any, table: Any, mistyped: Any) -> Any:
    """Write the scratch row into the buffer of its class; return how the scan continues."""
    category = int64(scratch, _CATEGORY)
    if int64(scratch, _PHASE) != 88 or category == layout.UNKNOWN:
        return GOES_ON
    entry = int64(int64(state, _CLASSES), category)
    kind, detail = entry & 15, entry >> 4
    if kind == layout.SKIPPED:
        return GOES_ON
    cap = int64(state, _CAPACITY)
    row = int64(state, _ROWS + kind - 1)
    out = int64(state, _OUT + kind - 1)
    if kind == layout.IS_DEVICE:
        if not _put_device(scratch, out, cap, row, detail, mistyped):
            return layout.ODD
    else:
        unthreaded = int64(scratch, _PID) == layout.UNKNOWN or int64(scratch, _TID) == layout.UNKNOWN
        needed = _ALWAYS | _OF_THREAD | (1 << _CORRELATION if kind == layout.IS_LAUNCH else _OF_EXTERNAL)
        if unthreaded or mistyped & needed != 0:
            return layout.ODD
        thread = _thread(scratch, table)
        if thread < 0:
            return layout.REHASH
        _put_common(scratch, out, cap, row)
        put_int64(out, cap * 3 + row, thread)
        if kind == layout.IS_LAUNCH:
            put_int64(out, cap * 4 + row, int64(scratch, _CORRELATION))
        else:
            put_int64(out, cap * 4 + row, detail)
            put_int64(out, cap * 5 + row, _external(scratch))
    if kind != layout.IS_LAUNCH and int64(scratch, _COLLECTIVE) != layout.UNKNOWN:
        if mistyped & _OF_COLLECTIVE != 0:
            return layout.ODD
        calls = 3 if kind == layout.IS_DEVICE else 4
        at = int64(state, _ROWS + calls)
        _put_call(scratch, int64(state, _OUT + calls), cap, at, row)
        put_int64(state, _ROWS + calls, at + 1)
    put_int64(state, _ROWS + kind - 1, row + 1)
    return GOES_ON


@kernel(7)
def scan(base: Any, end: Any, positions: Any, count: Any, scratch: Any, state: Any, table: Any) -> Any:
    """Read complete events, starting at the state's entry; return why the scan stopped.

    An event counts only when the token after it has been seen, so that a cut is always at the beginning of an event: at
    `CUT_AT`, where the next window must begin.
    """
    k = int64(state, _AT_ENTRY)
    cap = int64(state, _CAPACITY)
    begun = False
    while k < count:
        p = int32(positions, k)
        c = byte(base, p)
        put_int64(state, _AT_ENTRY, k)
        if (c != 123 and c != 93) or (k == 0 and blank(base, 0, end) != p):
            return layout.ODD
        if begun or c == 93:
            put_int64(state, _CUT_AT, p)
        if c == 93:
            return layout.END
        for kind in range(5):
            rows = int64(state, _ROWS + kind)
            put_int64(state, _BEFORE + kind, rows)
            if rows >= cap:
                return layout.FULL
        begun = True
        status, k, mistyped = event(base, end, positions, count, k, scratch, state, table)
        if status == GOES_ON:
            status = _put(scratch, state, table, mistyped)
        if status != GOES_ON:
            return status
    if begun:  # the last event may continue after the window's end
        for kind in range(5):
            put_int64(state, _ROWS + kind, int64(state, _BEFORE + kind))
    return layout.CUT
