"""The accelerated way to read events: windows of bytes in, columns out, no object per event.

Input: a buffer that begins at an event. Output: the columns of its complete events, or None if anything in it is not
certainly plain JSON. The caller then reads this buffer with msgspec, which handles all kinds of damage. Memory: one
window, its rows, and one copy of each distinct string.
"""

import codecs
from typing import NamedTuple

import msgspec
import numpy as np

from rankscope.analysis.core.record_kinds import ANNOTATION, DEVICE, part_of
from rankscope.analysis.core.table import UNKNOWN, Column
from rankscope.analysis.read.decode import Codes
from rankscope.analysis.read.kineto.columns import CALL_ROW
from rankscope.analysis.read.kineto.fast import layout
from rankscope.analysis.read.kineto.fast.keys import key_tables
from rankscope.analysis.read.kineto.fast.machine_code import kernels
from rankscope.analysis.read.kineto.stream import Window
from rankscope.analysis.read.rank_trace import CODED

WINDOW = 2 << 20  # bytes: small enough for the CPU cache
_PADDING = 64  # readable bytes after a window
_CAPACITY = 1 << 14  # rows of each class that are returned at a time
_ROWS = {"device": layout.DEVICE_ROW, "launches": layout.LAUNCH_ROW, "host": layout.HOST_ROW}
_CLASS = {"device": layout.IS_DEVICE, "launches": layout.IS_LAUNCH, "host": layout.IS_HOST, None: layout.SKIPPED}

Block = dict[str, dict[str, Column]]


class Scanned(NamedTuple):
    """The result of scanning one buffer."""

    used: int  # bytes, up to the beginning of an event or the end of the array
    lines: int  # line ends in these bytes
    ended: bool  # whether the array ended there
    blocks: list[Block]
    has_shapes: bool  # whether an operator had the dimensions of its inputs, in this buffer or an earlier one


class Scanner:
    """Scans the buffers of one file in order. Shares `codes` with the msgspec reader."""

    def __init__(self, codes: dict[str, Codes]) -> None:
        kernels()
        self._symbols = _Symbols(codes)
        self._keys, multipliers = key_tables()
        self._scratch = np.full(layout.SCRATCH, UNKNOWN, np.int64)
        self._state = np.zeros(layout.STATE, np.int64)
        self._buffers = [np.empty((width, _CAPACITY), np.int64) for width in layout.WIDTHS]
        self._window, self._positions = np.empty(0, np.uint8), np.empty(0, np.int32)
        self._report = np.zeros(4, np.int64)
        self._state[layout.KEYS] = _address(self._keys)
        self._state[[layout.EVENT_MULTIPLIER, layout.ARGUMENT_MULTIPLIER]] = multipliers
        self._state[layout.CAPACITY] = _CAPACITY
        for number, buffer in enumerate(self._buffers):
            self._state[layout.OUT + number] = _address(buffer)

    def scan(self, before: bytes, window: Window) -> Scanned | None:
        """Read the complete events of `before` and `window`, which follow one another; None: not plain JSON."""
        index, scan, count_lines, _ = kernels()
        size = len(before) + len(window)
        if len(self._window) < size + _PADDING:
            self._window = np.empty(size + size // 4 + _PADDING, np.uint8)
            self._positions = np.empty(size + size // 4 + _PADDING, np.int32)
        self._window[: len(before)] = np.frombuffer(before, np.uint8)
        self._window[len(before) : size] = np.frombuffer(window, np.uint8)
        self._window[size : size + _PADDING] = ord(" ")
        base = _address(self._window)
        positions, state = _address(self._positions), self._state
        count = index(base, size, positions, _address(self._report))
        odd_at, has_escapes, has_high_bytes = self._report[:3].tolist()
        if has_high_bytes and not _is_utf8(self._window[:size].tobytes()):
            return None
        state[[layout.AT_ENTRY, layout.CUT_AT, layout.HAS_ESCAPES]] = (0, 0, has_escapes)
        state[layout.ROWS : layout.ROWS + 5] = 0
        blocks: list[Block] = []
        scratch, state_at = _address(self._scratch), _address(state)
        while True:
            state[layout.CLASSES] = self._symbols.classes_address
            status = scan(base, size, positions, count, scratch, state_at, self._symbols.address)
            if status == layout.NEW_CATEGORY:
                self._symbols.classify(int(self._scratch[layout.FIELD["category"]]))
            elif status == layout.REHASH:
                self._symbols.grow()
            elif status == layout.FULL and odd_at >= state[layout.CUT_AT]:
                blocks.append(self._block())
            else:
                break
        used = int(state[layout.CUT_AT])
        if status in (layout.ODD, layout.FULL) or odd_at < max(used, size - _PADDING):
            return None  # only a token that the window's end cuts may look odd
        blocks.append(self._block())
        has_shapes = bool(self._scratch[layout.SHAPES_SEEN] == 1)
        return Scanned(used, count_lines(base, used), status == layout.END, blocks, has_shapes)

    def _block(self) -> Block:
        """Copy the written rows, with symbols turned into the codes of their columns."""
        rows = self._state[layout.ROWS : layout.ROWS + 5].tolist()
        block: Block = {}
        for number, (part, names) in enumerate(_ROWS.items()):
            if rows[number]:
                columns = self._buffers[number]
                block[part] = {name: self._column(name, columns[at, : rows[number]]) for at, name in enumerate(names)}
        for number, part in ((3, "device"), (4, "host")):
            if part in block:
                block[part] |= self._calls(self._buffers[number][:, : rows[number]])
        self._state[layout.ROWS : layout.ROWS + 5] = 0
        return block

    def _column(self, name: str, values: Column) -> Column:
        return self._symbols.codes(name, values) if name in CODED else values.copy()

    def _calls(self, columns: Column) -> dict[str, Column]:
        """Return the collective columns, and the rows that have them."""
        found = {CALL_ROW: columns[0].copy()}
        return found | {
            name: self._column(name, columns[at]) for at, name in enumerate(layout.COLLECTIVE_ROW[1:], start=1)
        }


class _Symbols:
    """Every distinct string of a file, stored once as bytes; its code in each column; the classes of categories."""

    def __init__(self, codes: dict[str, Codes]) -> None:
        self._codes = codes
        self._lookup: dict[str, Column] = {}
        self._table = np.zeros(8, np.int64)
        self._size = 1 << 13
        self._arena = np.empty(1 << 19, np.uint8)
        self._offsets = np.zeros(1, np.int64)
        self._classes = np.full(0, layout.UNSEEN, np.int64)
        self._hashes = np.zeros(0, np.uint64)
        self._slots = np.full(0, -1, np.int32)
        self._resize()

    @property
    def address(self) -> int:
        """The table's address, for the kernels."""
        return _address(self._table)

    @property
    def classes_address(self) -> int:
        """The address of each symbol's class, for the kernels."""
        return _address(self._classes)

    def grow(self) -> None:
        if self._table[5] * 2 > self._table[2]:
            self._size *= 4
        else:
            self._arena = np.concatenate([self._arena, np.empty(len(self._arena) * 3, np.uint8)])
        self._resize()

    def _resize(self) -> None:
        hashes, slots = np.zeros(self._size, np.uint64), np.full(self._size, -1, np.int32)
        old = (_address(self._hashes), _address(self._slots), len(self._slots))
        self._table[:2] = [_address(hashes), _address(slots)]
        kernels().rehash(*old, _address(self._table), self._size)
        self._hashes, self._slots = hashes, slots
        self._offsets = np.concatenate([self._offsets, np.zeros(self._size + 2 - len(self._offsets), np.int64)])
        more = np.full(self._size + 2 - len(self._classes), layout.UNSEEN, np.int64)
        self._classes = np.concatenate([self._classes, more])
        self._table[3:5] = [_address(self._arena), _address(self._offsets)]
        self._table[2], self._table[7] = self._size - 1, len(self._arena)

    def _raw(self, code: int) -> bytes:
        return self._arena[self._offsets[code] : self._offsets[code + 1]].tobytes()

    def text(self, code: int) -> str:
        """Return a symbol as a string, with its escapes resolved."""
        raw = self._raw(code)
        return msgspec.json.decode(b'"%b"' % raw, type=str) if b"\\" in raw else raw.decode("utf-8", "replace")

    def classify(self, code: int) -> None:
        """Set the class of a symbol that is a category."""
        try:
            category = self.text(code)
        except msgspec.DecodeError:  # a bad escape: the msgspec reader takes this window
            category = ""
        part = part_of(category)
        detail = DEVICE.get(category.lower(), 0) if part == "device" else int(category.lower() in ANNOTATION)
        self._classes[code] = _CLASS[part] + 16 * detail

    def codes(self, name: str, symbols: Column) -> Column:
        """Turn symbols into the codes that column `name` uses."""
        lookup = self._lookup.get(name, _NO_SYMBOL)
        if len(lookup) < self._table[5] + 1:
            lookup = np.concatenate([lookup, np.full(self._size + 2 - len(lookup), _NEW, np.int32)])
            self._lookup[name] = lookup
        at = symbols + 1  # negative for a row without a string, which takes the first entry
        found = lookup.take(at, mode="clip")
        if (new := found == _NEW).any():
            missing = np.unique(at[new])
            words = [self._pair(code) if name == "thread" else self.text(code) for code in (missing - 1).tolist()]
            lookup[missing] = self._codes[name].encode(words)
            found = lookup.take(at, mode="clip")
        return found

    def _pair(self, code: int) -> tuple[int, int]:
        pid, tid = np.frombuffer(self._raw(code), np.int64).tolist()
        return pid, tid


_NEW = -2
_NO_SYMBOL = np.full(1, -1, np.int32)


def _address(array: Column) -> int:
    return int(array.ctypes.data)


def _is_utf8(text: bytes) -> bool:
    """Return whether all characters are valid; the last one may be cut off."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(text)
    except UnicodeDecodeError:
        return False
    return True
