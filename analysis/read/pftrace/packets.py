"""Takes packets of torch's Perfetto traces apart: slices of threads, work on a device, and the words they refer to.

Source: github.com/pytorch/pytorch, torch/csrc/profiler/cuspy/cuspy_pftrace.cpp writes the packets (before: cupti/
monitor_pftrace.cpp). Numbers of fields: github.com/google/perfetto, protos/perfetto/trace.
"""

from collections import defaultdict
from typing import Any, ClassVar

import msgspec

from rankscope.analysis.read.kineto.event_schema import Args
from rankscope.analysis.read.pftrace.wire import BYTES, FIXED64, VARINT, WireError, double, fields, signed, text

BEGIN, END = 1, 2  # TrackEvent.Type
BOOTTIME, REALTIME = 6, 1  # BuiltinClock
_MOST_WORDS, _MOST_LETTERS = 1 << 22, 1 << 28  # of all tables together
_MOST_SEQUENCES = 1 << 10
_DEEPEST = 8
_ITEMS = 1 << 16  # of a list in an annotation

_NAMES = {field.encode_name: field.name for field in msgspec.structs.fields(Args)}
# Of the work on a device, which keeps these names free for another viewer's plugin.
_DEVICE_NAMES = _NAMES | {"device id": "device", "stream id": "stream"}


class Packet(msgspec.Struct):
    """The parts of a packet that the reader uses: places are (begin, end) in its bytes."""

    time: int | None = None
    clock: int = BOOTTIME
    sequence: int = 0
    clears: bool = False
    slice: tuple[int, int] | None = None
    work: tuple[int, int] | None = None
    words: tuple[int, int] | None = None
    track: tuple[int, int] | None = None
    clocks: tuple[int, int] | None = None
    compressed: bool = False


_PLACES = {11: "slice", 53: "work", 12: "words", 60: "track", 6: "clocks"}


def packet(data: bytes) -> Packet:
    """Return the parts of a packet. Raises `WireError`."""
    found = Packet()
    for number, kind, value, end in fields(data, 0, len(data)):
        if number in _PLACES and kind == BYTES:
            setattr(found, _PLACES[number], (value, end))
        elif number == 50:
            found.compressed = True
        elif kind != VARINT:
            continue
        elif number == 8:
            found.time = signed(value)
        elif number == 58:
            found.clock = value
        elif number == 10:
            found.sequence = value
        elif (number == 13 and value & 1) or (number == 41 and value):
            found.clears = True
    return found


def slice_kind(data: bytes, place: tuple[int, int]) -> tuple[int, int]:
    """Return what a slice's packet is (BEGIN, END or another number) and its track."""
    kind = track = 0
    for number, wire, value, _ in fields(data, *place):
        if wire == VARINT:
            if number == 9:
                kind = value
            elif number == 11:
                track = value
    return kind, track


def thread_track(data: bytes, place: tuple[int, int]) -> tuple[int, tuple[int, int] | None]:
    """Return a track's id, and its process and thread if it is that of a thread."""
    track, thread = 0, None
    for number, kind, value, end in fields(data, *place):
        if number == 1 and kind == VARINT:
            track = value
        elif number == 4 and kind == BYTES:
            found = {number: signed(value) for number, kind, value, _ in fields(data, value, end) if kind == VARINT}
            thread = (found.get(1, 0), found.get(2, 0))
    return track, thread


def clocks(data: bytes, place: tuple[int, int]) -> dict[int, int]:
    """Return by clock what a snapshot read on it at one moment (ns)."""
    found = {}
    for number, kind, value, end in fields(data, *place):
        if number == 1 and kind == BYTES:
            own = {number: value for number, kind, value, _ in fields(data, value, end) if kind == VARINT}
            found[own.get(1, 0)] = signed(own.get(2, 0))
    return found


class Words:
    """The words that a sequence's packets refer to by number: names, categories, kernels, stages."""

    _TABLES: ClassVar = {2: "names", 1: "categories", 24: "stages", 1000: "kernels", 3: "keys", 29: "values"}

    def __init__(self) -> None:
        self._tables: defaultdict[tuple[int, str], dict[int, str]] = defaultdict(dict)
        self._sequences: set[int] = set()
        self._count = self._letters = 0

    def clear(self, sequence: int) -> None:
        for table in self._TABLES.values():
            self._tables.pop((sequence, table), None)

    def add(self, sequence: int, data: bytes, place: tuple[int, int]) -> None:
        self._sequences.add(sequence)
        if len(self._sequences) > _MOST_SEQUENCES:
            raise WireError(f"more than {_MOST_SEQUENCES} sequences")
        for number, kind, value, end in fields(data, *place):
            table = self._TABLES.get(number)
            if table is None or kind != BYTES:
                continue
            iid, word = 0, None
            for part, wire, at, stop in fields(data, value, end):
                if part == 1 and wire == VARINT:
                    iid = at
                elif wire == BYTES and (part == 2 or (part == 3 and table == "kernels")):
                    word = text(data, at, stop)
            if word is not None:
                self._count += 1
                self._letters += len(word)
                if self._count > _MOST_WORDS or self._letters > _MOST_LETTERS:
                    raise WireError("more interned words than any trace has")
                self._tables[sequence, table][iid] = word

    def get(self, sequence: int, table: str, iid: int) -> str | None:
        return self._tables[sequence, table].get(iid)


class Record(msgspec.Struct):
    """A slice of a thread or a work on a device, with its words looked up. A word that is missing is None."""

    name: str | None
    category: str | None
    args: Args
    track: int = 0
    duration: int | None = None  # ns, of work on a device
    device: int = 0
    unnamed: bool = False  # it refers to a word that the file does not have


def slice_of(data: bytes, place: tuple[int, int], words: Words, sequence: int) -> Record:
    """Return a slice that begins."""
    found = Record(name=None, category=None, args=Args())
    for number, kind, value, end in fields(data, *place):
        if kind == VARINT and number == 10:
            found.name = words.get(sequence, "names", value)
            found.unnamed |= found.name is None
        elif kind == VARINT and number == 3:
            found.category = words.get(sequence, "categories", value)
            found.unnamed |= found.category is None
        elif kind == VARINT and number == 11:
            found.track = value
        elif kind == BYTES and number == 23:
            found.name = text(data, value, end)
        elif kind == BYTES and number == 22:
            found.category = text(data, value, end)
        elif kind == BYTES and number == 4:
            key, content = _annotation(data, value, end, words, sequence, 0)
            if key in _NAMES:
                setattr(found.args, _NAMES[key], content)
    return found


# The names of `stages` that torch writes, and the category of each in torch's other traces.
STAGES = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Annotation": "gpu_user_annotation",
    "EventRecord": "graph_event_node",
    "HostNode": "graph_host_node",
}


def work_of(data: bytes, place: tuple[int, int], words: Words, sequence: int) -> Record:
    """Return one work on a device. Its name is the kernel's, or that of its stage."""
    found = Record(name=None, category=None, args=Args())
    stage = None
    for number, kind, value, end in fields(data, *place):
        if kind == VARINT and number == 2:
            found.duration = signed(value)
        elif kind == VARINT and number == 11:
            found.device = signed(value)
        elif kind == VARINT and number == 14:
            stage = words.get(sequence, "stages", value)
            found.unnamed |= stage is None
        elif kind == VARINT and number in (20, 19):
            name = words.get(sequence, "names" if number == 20 else "kernels", value)
            found.unnamed |= name is None
            found.name = found.name or name
        elif kind == BYTES and number == 17:
            found.name = text(data, value, end)
        elif kind == BYTES and number == 6:
            pair = {part: text(data, at, stop) for part, wire, at, stop in fields(data, value, end) if wire == BYTES}
            if pair.get(1) in _DEVICE_NAMES:
                setattr(found.args, _DEVICE_NAMES[pair[1]], pair.get(2))
    found.category = STAGES.get(stage or "", stage)
    found.name = found.name or stage
    return found


def _annotation(data: bytes, at: int, end: int, words: Words, sequence: int, depth: int) -> tuple[str | None, Any]:
    """Return the name and the value of an annotation, as JSON has it."""
    if depth > _DEEPEST:
        raise WireError(f"annotations are nested deeper than {_DEEPEST}")
    key, value = None, None
    items: list[Any] = []
    pairs: dict[str, Any] = {}
    for number, kind, place, stop in fields(data, at, end):
        if number in (1, 10):
            key = text(data, place, stop) if number == 10 else words.get(sequence, "keys", place)
        elif kind != BYTES:
            value = words.get(sequence, "values", place) if number == 17 else _number(number, kind, place)
        elif number in (6, 9):
            value = text(data, place, stop)
        elif number == 12 and len(items) < _ITEMS:
            items.append(_annotation(data, place, stop, words, sequence, depth + 1)[1])
        elif number == 11 and len(pairs) < _ITEMS:
            name, inner = _annotation(data, place, stop, words, sequence, depth + 1)
            pairs[str(name)] = inner
    return key, items or pairs or value


def _number(number: int, kind: int, value: int) -> Any:
    """Return the value of an annotation that is written as a number; None for a field of another meaning."""
    if number == 5 and kind == FIXED64:
        return double(value)
    if number == 2:
        return value != 0
    return {3: value, 4: signed(value), 7: value}.get(number)
