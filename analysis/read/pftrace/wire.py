"""Decodes protobuf's wire format, with bounds: fields of a message, and the packets of a Perfetto trace.

Source: protobuf.dev/programming-guides/encoding. No message type is generated or needed: whoever reads a message knows
the numbers of the fields that it wants, and the others are skipped.
"""

import struct
from collections.abc import Iterable, Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MOST_PACKET = 64 << 20  # bytes; anything larger is damage
_MOST_DIGITS = 10  # bytes of a varint
_PACKET = 0x0A  # field 1 of Trace, as bytes with a length

Field = tuple[int, int, int, int]  # number, wire type, then the value and 0, or the begin and the end of the bytes


class WireError(ValueError):
    """The bytes are no protobuf message."""


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the unsigned number at a place, and the place after it."""
    value = 0
    for digit in range(_MOST_DIGITS):
        if at >= end:
            raise WireError("a number is cut")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * digit)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise WireError(f"a number has more than {_MOST_DIGITS} bytes")


def fields(data: bytes, at: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message between two places. Raises `WireError` if it is damaged."""
    while at < end:
        tag = data[at]
        if tag < 0x80:
            at += 1
        else:
            tag, at = varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise WireError("a field has the number 0")
        if kind == VARINT or kind == BYTES:
            if at < end and data[at] < 0x80:  # most numbers and lengths: a call for each would take half of the time
                size = data[at]
                at += 1
            else:
                size, at = varint(data, at, end)
            if kind == VARINT:
                yield number, kind, size, 0
                continue
        elif kind == FIXED64 or kind == FIXED32:
            size = 8 if kind == FIXED64 else 4
        else:
            raise WireError(f"a field has the wire type {kind}, which no packet has")
        if size > end - at:
            raise WireError("a field is longer than its message")
        if kind == BYTES:
            yield number, kind, at, at + size
        else:
            yield number, kind, int.from_bytes(data[at : at + size], "little"), 0
        at += size


def signed(value: int) -> int:
    """Return an int64 or int32 field, which is written as an unsigned number of 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def double(value: int) -> float:
    """Return a double field."""
    number: float = struct.unpack("<d", value.to_bytes(8, "little"))[0]
    return number


def text(data: bytes, at: int, end: int) -> str:
    """Return a string field; bytes that are not UTF-8 are replaced."""
    return data[at:end].decode("utf-8", "replace")


class Packets:
    """Iterates over the packets of a trace; afterwards `fault` says where and how it is damaged, if it is."""

    def __init__(self, windows: Iterable[bytes]) -> None:
        self._windows = iter(windows)
        self.fault: str | None = None
        self.empty = True  # whether there was not one byte

    def __iter__(self) -> Iterator[bytes]:
        buffer, at, before = b"", 0, 0
        while True:
            found = self._next(buffer, at, before)
            if isinstance(found, tuple):
                start, at = found
                yield buffer[start:at]
                continue
            if self.fault is not None:
                return
            window = next(self._windows, None)
            if window is None:
                if at < len(buffer):
                    self.fault = f"cut off: the last complete packet ends at byte {before + at} (decompressed)"
                return
            self.empty = False
            before += at
            buffer, at = buffer[at:] + window, 0

    def _next(self, buffer: bytes, at: int, before: int) -> tuple[int, int] | None:
        """Return the begin and the end of the next packet; None if its end is not there yet, or never will be."""
        if at >= len(buffer):
            return None
        if buffer[at] != _PACKET:
            self.fault = f"byte {before + at} (decompressed) begins no packet"
            return None
        try:
            size, start = varint(buffer, at + 1, len(buffer))
        except WireError as error:
            if len(buffer) - at > _MOST_DIGITS:
                self.fault = f"byte {before + at} (decompressed): {error}"
            return None
        if size > MOST_PACKET:
            self.fault = f"the packet at byte {before + at} (decompressed) would have {size >> 20} MiB"
            return None
        return (start, start + size) if start + size <= len(buffer) else None
