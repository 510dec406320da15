"""Turns a byte stream into trace events, one block at a time, for any JSON layout, complete or damaged.

A block is cut where the text looks like the border between two events. The decoder verifies the cut, because a cut
inside an event or a string leaves brackets open. Memory: one window and the events of one block.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from rankscope.analysis.core.notices import Level, Notice, UnreadableTraceError
from rankscope.analysis.read.kineto.event_schema import Event, array_end, decode, is_wrong_cut
from rankscope.analysis.read.kineto.metadata import unique_keys
from rankscope.analysis.read.kineto.repair import BOUNDARY, joined, repair
from rankscope.analysis.read.kineto.stream import WINDOW, Stream, Window
from rankscope.conf.plain_text import path_text

if TYPE_CHECKING:
    from rankscope.analysis.read.kineto.fast.scanner import Block, Scanner

MAX_EVENT = 64 << 20  # bytes; anything larger is damage, not an event
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")
_TAIL = 1 << 16
_SHAPES = b'"Input Dims"'
_SEARCHED = 32 << 20  # bytes of a file that are searched completely


class EventReader:
    """Iterates over the events of one file; afterwards `metadata` and `notices` hold everything else.

    Yields lists of events. With a scanner, it yields columns for each window that the scanner can read, and lists of
    events for the others.
    """

    def __init__(
        self, path: Path, label: str | None = None, window: int = WINDOW, scanner: "Scanner | None" = None
    ) -> None:
        self.label = label or path_text(path.name)
        self.metadata: dict[str, Any] = {}
        self.notices: list[Notice] = []
        self.complete = True
        self.has_shapes = False  # whether operators have the dimensions of their inputs
        self._stream = Stream(path, window)
        self._scanner = scanner
        self._line = 1
        self._byte = 0
        self._repairs: Counter[str] = Counter()

    def __iter__(self) -> "Iterator[list[Event] | Block]":
        windows = self._stream.in_one_buffer()
        buffer, head = self._find_array(windows)
        tail: bytes | None = None
        for window in itertools.chain([b""] if buffer else [], windows):
            scanned = None if self._scanner is None else self._scanner.scan(buffer, window)
            if scanned is not None:
                self.has_shapes |= scanned.has_shapes
                yield from scanned.blocks
                buffer = _behind(scanned.used, buffer, window)
                if scanned.ended:
                    tail = self._to_the_end(buffer, windows)
                    break
                self._line += scanned.lines
                self._byte += scanned.used
                self._check_growth(buffer)
                continue
            buffer = b"".join((buffer, window))
            self._look_for_shapes(buffer)
            cut, events, tail = self._whole_events(buffer)
            yield events
            if tail is not None:
                tail = self._to_the_end(tail, windows)
                break
            if cut:
                self._advance(buffer, cut)
                buffer = buffer[cut:]
            self._check_growth(buffer)
        if tail is None:
            events, tail = self._rest(bytes(buffer))
            yield events
        self._finish(head, tail)

    def _look_for_shapes(self, buffer: bytes) -> None:
        """Look for shapes in text that no scanner has read: in all of it, later in the file only in its beginning.

        With shapes, most operators have them, and a search that finds nothing takes as long as half of the reading.
        """
        if not self.has_shapes:
            self.has_shapes = buffer.find(_SHAPES, 0, len(buffer) if self._byte < _SEARCHED else _TAIL) >= 0

    @staticmethod
    def _to_the_end(tail: bytes, windows: Iterator[Window]) -> bytes:
        """Read what follows the events, up to the size of one event: metadata, or damage that is reported later."""
        for window in windows:
            if len(tail) <= MAX_EVENT:
                tail += window
        return tail

    def _check_growth(self, buffer: bytes) -> None:
        """Refuse a file in which no event ends: memory may hold only one window and one event of maximum size."""
        if len(buffer) > MAX_EVENT:
            raise self._refused("json_invalid", f"no event ends within {MAX_EVENT >> 20} MiB", self._byte)

    # --- the parts of the file -------------------------------------------------------------------------------

    def _find_array(self, windows: Iterator[Window]) -> tuple[Window, bytes]:
        """Return the text after the array's bracket, as far as it has been read, and the text before it."""
        buffer = b""
        for window in windows:
            buffer += window
            match = _ARRAY.search(buffer) or _BARE.match(buffer)
            if match:
                self._advance(buffer, match.end())
                return memoryview(buffer)[match.end() :], buffer[: match.end()]
            if len(buffer) > MAX_EVENT:
                raise self._refused("not_a_trace", f"no traceEvents in its first {MAX_EVENT >> 20} MiB: not a trace")
        if not buffer.strip():
            raise self._refused("empty_file", "empty; record it again or remove it")
        if self._stream.fault or (buffer.lstrip()[:1] == b"{" and not buffer.rstrip().endswith(b"}")):
            raise self._refused(self._stream.fault or "truncated", "cut before its first event; record it again")
        raise self._refused(
            "not_a_trace",
            "no traceEvents in it: not a trace of torch.profiler; give the file that export_chrome_trace wrote",
        )

    def _whole_events(self, buffer: bytes) -> tuple[int, list[Event], bytes | None]:
        """Decode up to the last border in `buffer`; return (bytes used, events, text after the array or None)."""
        for size in (_TAIL, len(buffer)):
            start = max(0, len(buffer) - size)
            for border in reversed(list(BOUNDARY.finditer(buffer, start))[-_TRIES:]):
                text = b"[" + buffer[: border.start() + 1] + b"]"
                try:
                    return border.end() - 1, self._decode(text), None
                except msgspec.MsgspecError as error:
                    found = self._up_to_end(error, text)
                    if found is not None:
                        return len(buffer), found[0], buffer[found[1] - 1 :]
                    if not is_wrong_cut(error, text):
                        return border.end() - 1, self._mended(text[1:-1]), None
                except UnicodeDecodeError:
                    return border.end() - 1, self._mended(text[1:-1]), None
        return 0, [], None

    def _rest(self, buffer: bytes) -> tuple[list[Event], bytes | None]:
        """Decode the end of the file: the last events, the end of the array, and the metadata after it."""
        text, repairs = b"[" + buffer, Counter[str]()
        for _ in range(2):
            try:
                events, tail = self._decode(text), b"]"  # a bare array
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                found = self._up_to_end(error, text)
                if found is None:
                    text, repairs = repair(text)
                    if repairs:
                        continue
                    break
                events, tail = found[0], text[found[1] :]
            self._repairs += repairs
            return events, tail
        return self._salvage(buffer, last=True)

    def _up_to_end(self, error: Exception, text: bytes) -> tuple[list[Event], int] | None:
        """Decode up to the array's closing bracket, if text after it is all that is wrong; return its place too."""
        if "trailing characters" not in str(error):
            return None
        end = array_end(error, text)
        try:
            return self._decode(text[: end + 1]), end
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def _decode(self, text: bytes) -> list[Event]:
        """Decode a JSON array of events; subclasses that need other fields override this."""
        return decode(text)

    # --- damage ----------------------------------------------------------------------------------------------

    def _mended(self, block: bytes) -> list[Event]:
        fixed, repairs = repair(block)
        if repairs:
            try:
                events = self._decode(b"[" + fixed + b"]")
            except (msgspec.MsgspecError, UnicodeDecodeError):
                pass
            else:
                self._repairs += repairs
                return events
        return self._salvage(block, last=False)[0]

    def _salvage(self, block: bytes, *, last: bool) -> tuple[list[Event], bytes | None]:
        """Decode each record on its own if possible; report each record that is lost."""
        events: list[Event] = []
        done = 0
        for texts in joined(block):
            offset = texts[0][0]
            if offset < done:
                continue
            found = self._first_whole(texts)
            if found is None:
                end = offset + len(texts[0][1])
                if last and end == len(block):
                    break
                self._lost_record(block, offset)
                continue
            event, used = found
            events += event
            done = offset + used
            if last and (end_of_array := _ARRAY_ENDS.match(block, done)):  # a copy of the rest for each event is slow
                return events, block[end_of_array.end() - 1 :]
        if last:
            self._cut(len(block) - done, done)
        return events, None

    def _first_whole(self, texts: list[tuple[int, bytes]]) -> tuple[list[Event], int] | None:
        for _, text in texts:
            fixed, repairs = repair(text)
            try:
                events = self._decode(b"[" + fixed + b"]")
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                # The array ended inside this text, so this is the last record.
                ended = self._up_to_end(error, b"[" + fixed)
                if ended is not None:
                    self._repairs += repairs
                    return ended[0], len(text) - (len(fixed) + 1 - ended[1])
                if "truncated" in str(error) or is_wrong_cut(error, fixed):
                    continue
                return None
            self._repairs += repairs
            return events, len(text)
        return None

    def _lost_record(self, block: bytes, offset: int) -> None:
        line = self._line + block.count(b"\n", 0, offset)
        self.complete = False  # nobody knows what it described, nor whether it hides others
        self._note(
            "json_invalid",
            f"line {line}: a record is not valid JSON; it was left out, so this rank's numbers are incomplete",
            "partial",
            line=line,
            byte=self._byte + offset,
        )

    def _cut(self, dropped: int, done: int) -> None:
        self.complete = False
        kind = self._stream.fault or "truncated"
        what = {
            "truncated": "cut off",
            "gzip_truncated": "gzip stream cut off",
            "gzip_corrupt": "gzip stream corrupt",
        }[kind]
        place = self._byte + done
        self._note(
            kind,
            f"{what}: the last complete event ends at byte {place} (decompressed), the {dropped} bytes after it were "
            "dropped. The rank is excluded from cross-rank numbers; record it again",
            "partial",
            byte=place,
        )

    # --- metadata and notes ------------------------------------------------------------------------------------

    def _finish(self, head: bytes, tail: bytes | None) -> None:
        if self._stream.fault and self.complete:
            self._cut(0, 0)
        for kind, count in sorted(self._repairs.items()):
            self._note(kind, f"{_REPAIRED[kind]} ({count} times); the rest of each record is used", count=count)
        if head.rstrip().endswith(b"[") and head.lstrip()[:1] == b"[":
            return  # a bare array has no metadata
        size = len(head) + len(tail or b"")
        if size > _MOST_METADATA:
            self._note("metadata_too_large", f"{size >> 20} MiB of metadata were left out: its rank is unknown")
            return
        pairs = unique_keys(self.label)
        try:
            document = _first_value(head + (tail if tail is not None else b"]}"), pairs)
        except (ValueError, RecursionError):
            head_only, _ = repair(head + b"]}")
            try:
                document = json.loads(head_only, object_pairs_hook=pairs)
            except (ValueError, RecursionError):
                raise self._refused("json_invalid", "its metadata is not valid JSON; record it again") from None
            if self.complete:
                self._note("json_invalid", "text after the events is not valid JSON; it was left out")
        if not isinstance(document, dict):
            raise self._refused("json_invalid", "its metadata is not a JSON object; record it again")
        self.metadata = document

    def _advance(self, buffer: bytes, used: int) -> None:
        self._line += int(np.count_nonzero(np.frombuffer(buffer, np.uint8, used) == ord("\n")))
        self._byte += used

    def _note(self, kind: str, message: str, level: Level = "warning", **details: Any) -> None:
        name = self.label
        self.notices.append(Notice(kind=kind, level=level, file=name, message=f"{name}: {message}", details=details))

    def _refused(self, kind: str, message: str, byte: int | None = None) -> UnreadableTraceError:
        self._note(kind, message, "partial", **({} if byte is None else {"byte": byte}))
        return UnreadableTraceError(self.notices[-1])


def _first_value(text: bytes, pairs: Callable[[list[tuple[str, Any]]], Any]) -> Any:
    """Decode the JSON value that `text` begins with, repaired if necessary. Raises `ValueError` or `RecursionError`."""
    if b"\\" not in text:  # escapes may be wrong even if json accepts them
        try:
            return _decoded(text, pairs)
        except (ValueError, RecursionError):
            pass
    return _decoded(repair(text)[0], pairs)


def _decoded(text: bytes, pairs: Callable[[list[tuple[str, Any]]], Any]) -> Any:
    decoder = json.JSONDecoder(object_pairs_hook=pairs, parse_constant=_refused_constant)
    return decoder.raw_decode(text.decode("utf-8-sig").lstrip())[0]


def _refused_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _behind(used: int, buffer: Window, window: Window) -> bytes:
    """Return what follows the first `used` bytes of both; both together are copied only if they must be."""
    return bytes(window[used - len(buffer) :]) if used >= len(buffer) else b"".join((buffer[used:], window))


_TRIES = 20
_MOST_METADATA = 16 << 20  # bytes; as Python objects they take fifty times as much
_ARRAY_ENDS = re.compile(rb"\s*\]")
_REPAIRED = {
    "invalid_bytes_replaced": "bytes that are not UTF-8, or control characters, were replaced",
    "non_finite_token": "bare nan or inf was read as unknown",
    "invalid_escape_repaired": "invalid escapes in names were read as plain backslashes",
}
