"""The accelerated way to read events: windows of bytes in, columns out, no object per event.

Input: a buffer that begins at an event. Output: the columns of its complete events, or None if anything in it is not
certainly plain JSON. The caller then reads this buffer with msgspec, which handles all kinds of damage. Memory: one
window, its rows, and one copy of each distinct string.
"""

import codecs
from collections.abc import Sequence
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
_CALLS = (CALL_ROW, *layout.COLLECTIVE_ROW[1:])
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
        self._addresses: list[int] = []
        self._state[layout.KEYS] = _address(self._keys)
        self._state[[layout.EVENT_MULTIPLIER, layout.ARGUMENT_MULTIPLIER]] = multipliers
        self._state[layout.CAPACITY] = _CAPACITY
        for number, buffer in enumerate(self._buffers):
            self._state[layout.OUT + number] = _address(buffer)

    def scan(self, before: Window, window: Window) -> Scanned | None:
        """Read the complete events of `before` and `window`, which follow one another; None: not plain JSON."""
        index, scan, count_lines, _ = kernels()
        size = len(before) + len(window)
        if len(self._window) < size + _PADDING:
            self._window = np.empty(size + size // 4 + _PADDING, np.uint8)
            self._positions = np.empty(size + size // 4 + _PADDING, np.int32)
            own = (self._window, self._positions, self._report, self._scratch, self._state)
            self._addresses = [_address(array) for array in own]
        self._window[: len(before)] = np.frombuffer(before, np.uint8)
        self._window[len(before) : size] = np.frombuffer(window, np.uint8)
        self._window[size : size + _PADDING] = ord(" ")
        (base, positions, report, scratch, state_at), state = self._addresses, self._state
        count = index(base, size, positions, report)
        odd_at, has_escapes, has_high_bytes, lines = self._report.tolist()
        if has_high_bytes and not _is_utf8(self._window[:size].tobytes()):
            return None
        state[[layout.AT_ENTRY, layout.CUT_AT, layout.HAS_ESCAPES]] = (0, 0, has_escapes)
        state[layout.ROWS : layout.ROWS + 5] = 0
        blocks: list[Block] = []
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
        lines -= count_lines(base + used, size - used)
        return Scanned(used, lines, status == layout.END, blocks, has_shapes)

    def _block(self) -> Block:
        """Copy the written rows, with symbols turned into the codes of their columns."""
        rows = self._state[layout.ROWS : layout.ROWS + 5].tolist()
        block: Block = {}
        for number, (part, names) in enumerate(_ROWS.items()):
            if rows[number]:
                block[part] = self._columns(names, self._buffers[number][:, : rows[number]])
        for number, part in ((3, "device"), (4, "host")):
            if part in block:
                block[part] |= self._columns(
                    (CALL_ROW, *layout.COLLECTIVE_ROW[1:]), self._buffers[number][:, : rows[number]]
                )
        self._state[layout.ROWS : layout.ROWS + 5] = 0
        return block

    def _columns(self, names: Sequence[str], rows: Column) -> dict[str, Column]:
        symbols, own = self._symbols, rows.copy()
        return {name: symbols.codes(name, own[at]) if name in CODED else own[at] for at, name in enumerate(names)}


class _Symbols:
    """Every distinct string of a file, stored once as bytes; its code in each column; the classes of categories."""

    def __init__(self, codes: dict[str, Codes]) -> None:
        self._codes = codes
        self._lookup: dict[str, Column] = {}
        self._table = np.zeros(8, np.int64)
        self.address = _address(self._table)
        self.classes_address = 0  # of each symbol's class
        self._size = 1 << 13
        self._arena = np.empty(1 << 19, np.uint8)
        self._offsets = np.zeros(1, np.int64)
        self._classes = np.full(0, layout.UNSEEN, np.int64)
        self._hashes = np.zeros(0, np.uint64)
        self._slots = np.full(0, -1, np.int32)
        self._resize()

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
        kernels().rehash(*old, self.address, self._size)
        self._hashes, self._slots = hashes, slots
        self._offsets = np.concatenate([self._offsets, np.zeros(self._size + 2 - len(self._offsets), np.int64)])
        more = np.full(self._size + 2 - len(self._classes), layout.UNSEEN, np.int64)
        self._classes = np.concatenate([self._classes, more])
        self.classes_address = _address(self._classes)
        self._table[3:5] = [_address(self._arena), _address(self._offsets)]
        self._table[2], self._table[7] = self._size - 1, len(self._arena)

    def _raw(self, codes: Column) -> list[bytes]:
        """Return the bytes of some symbols."""
        begins, ends = self._offsets[codes].tolist(), self._offsets[codes + 1].tolist()
        arena = self._arena.data
        return [bytes(arena[begin:end]) for begin, end in zip(begins, ends, strict=True)]

    def classify(self, code: int) -> None:
        """Set the class of a symbol that is a category."""
        try:
            category = _text(*self._raw(np.array([code])))
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
            asked = np.zeros(len(lookup), bool)
            asked[at[new]] = True
            missing = np.flatnonzero(asked)
            raw = self._raw(missing - 1)
            lookup[missing] = self._codes[name].encode([*map(_pair if name == "thread" else _text, raw)])
            found = lookup.take(at, mode="clip")
        return found


_NEW = -2
_NO_SYMBOL = np.full(1, -1, np.int32)


def _text(raw: bytes) -> str:
    """Return a symbol as a string, with its escapes resolved."""
    return msgspec.json.decode(b'"%b"' % raw, type=str) if b"\\" in raw else raw.decode("utf-8", "replace")


def _pair(raw: bytes) -> tuple[int, int]:
    pid, tid = np.frombuffer(raw, np.int64).tolist()
    return pid, tid


def _address(array: Column) -> int:
    return int(array.ctypes.data)


def _is_utf8(text: bytes) -> bool:
    """Return whether all characters are valid; the last one may be cut off."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(text)
    except UnicodeDecodeError:
        return False
    return True
