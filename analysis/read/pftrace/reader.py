"""Reads a Perfetto trace of torch.profiler: one file in, the same `RankTrace` out as from its JSON.

The file is read twice. A slice is written as two packets, its begin and its end, and torch writes the ends of thousands
of slices after all their begins. So the first reading keeps only times and tracks, and finds how long each slice is.
The second one makes the events, block by block. Memory: 25 bytes per packet of a slice, and the columns.
"""

from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.analysis.core.notices import Level, Notice, UnreadableTraceError
from rankscope.analysis.core.table import UNKNOWN, Column
from rankscope.analysis.read.kineto.columns import Builder
from rankscope.analysis.read.kineto.event_schema import Event
from rankscope.analysis.read.kineto.reader import check_activity
from rankscope.analysis.read.kineto.stream import Stream
from rankscope.analysis.read.pftrace.packets import (
    BEGIN,
    BOOTTIME,
    END,
    REALTIME,
    Packet,
    Record,
    Words,
    clocks,
    packet,
    slice_kind,
    slice_of,
    thread_track,
    work_of,
)
from rankscope.analysis.read.pftrace.wire import Packets, WireError
from rankscope.analysis.read.rank_trace import EARLIEST, LATEST, RankTrace
from rankscope.conf.plain_text import path_text

_BLOCK = 1 << 14  # events
_MOST_SLICES = 1 << 26
_MOST_TRACKS = 1 << 20


def read(path: Path, label: str | None = None) -> RankTrace:
    """Read one file, named `label` in notices. Raises `UnreadableTraceError` if it gives no numbers at all."""
    reader = PftraceReader(path, label or path_text(path.name))
    builder = Builder()
    for block in reader:
        builder.add(block)
    trace = builder.finish(reader, reader.base)
    check_activity(trace)
    return trace


class PftraceReader:
    """Iterates over the events of one file; afterwards `notices` holds what was wrong. The file states no rank."""

    has_shapes = False  # no reader looks for shapes in these files

    def __init__(self, path: Path, label: str) -> None:
        self.label = label
        self.metadata: dict[str, Any] = {}
        self.notices: list[Notice] = []
        self.complete = True
        self.base = 0  # what the events' times are counted from (ns since 1970)
        self._path = path
        self._tracks: dict[int, tuple[int, int]] = {}
        self._offsets: dict[int, int] = {}  # clock -> REALTIME minus it (ns)
        self._lost: Counter[str] = Counter()

    def __iter__(self) -> Iterator[list[Event]]:
        durations = iter(self._durations().tolist())
        words, block = Words(), list[Event]()
        for data, found in self._packets(count=True):
            event = self._event(data, found, words, durations)
            if event is not None:
                block.append(event)
            if len(block) >= _BLOCK:
                yield block
                block = []
        yield block
        for kind, (text, level) in _LOST.items():
            if count := self._lost[kind]:
                self.complete &= level != "partial"
                self._note(kind, f"{count} {text}", level)

    # --- the first reading -----------------------------------------------------------------------------------

    def _durations(self) -> Column:
        """Return how long the slice of each begin is (ns), in the order of the file; `UNKNOWN` without its end."""
        kinds, tracks, times = array("b"), array("Q"), array("q")
        for data, found in self._packets(count=False):
            try:
                if found.clocks is not None and not self._offsets:
                    self._set_clocks(clocks(data, found.clocks))
                if found.track is not None and len(self._tracks) < _MOST_TRACKS:
                    track, thread = thread_track(data, found.track)
                    if thread is not None:
                        self._tracks[track] = thread
                kind, track = (0, 0) if found.slice is None else slice_kind(data, found.slice)
            except WireError:
                continue  # the second reading counts it
            time = self._time(found)
            if time is not None and self.base == 0:
                self.base = time
            if kind in (BEGIN, END):
                kinds.append(kind)
                tracks.append(track)
                times.append(UNKNOWN if time is None else time)
            if len(kinds) > _MOST_SLICES:
                raise self._refused("too_large", f"more than {_MOST_SLICES >> 21} million slices; record fewer steps")
        return lengths(np.array(kinds, np.int8), np.array(tracks, np.uint64), np.array(times, np.int64))

    def _set_clocks(self, snapshot: dict[int, int]) -> None:
        real = snapshot.get(REALTIME)
        if real is not None:
            self._offsets = {clock: real - time for clock, time in snapshot.items()}

    def _time(self, found: Packet) -> int | None:
        """Return the wall clock of a packet (ns since 1970); None if it is unknown or cannot be.

        Without a snapshot of the clocks, as the first versions wrote it, times already are wall clocks.
        """
        offset = self._offsets.get(found.clock, 0 if found.clock == BOOTTIME and not self._offsets else None)
        if found.time is None or offset is None:
            return None
        time = found.time + offset
        return time if EARLIEST < time < LATEST else None

    # --- the second reading ----------------------------------------------------------------------------------

    def _event(self, data: bytes, found: Packet, words: Words, durations: Iterator[int]) -> Event | None:
        """Return the event of a packet that begins a slice or has work on a device; other packets change the state."""
        length = UNKNOWN
        try:
            if found.clears:
                words.clear(found.sequence)
            if found.words is not None:
                words.add(found.sequence, data, found.words)
            if found.slice is not None and slice_kind(data, found.slice)[0] == BEGIN:
                length = next(durations, UNKNOWN)
                record = slice_of(data, found.slice, words, found.sequence)
            elif found.work is not None:
                record = work_of(data, found.work, words, found.sequence)
                if record.duration is None:
                    return None  # it describes queues or stages
                length = record.duration
            else:
                return None
        except WireError:
            self._lost["packets_damaged"] += 1
            return None
        return self._made(found, record, length)

    def _made(self, found: Packet, record: Record, length: int) -> Event | None:
        if record.unnamed:
            self._lost["names_missing"] += 1
        if record.category is None:
            return None  # of overhead and waits of a stream, which no table has
        time = self._time(found)
        if time is None:
            self._lost["times_unknown"] += 1
            return None
        pid, tid = self._tracks.get(record.track, (0, record.track)) if record.duration is None else (record.device, 0)
        return Event(
            ph="X",
            cat=record.category,
            name=record.name,
            ts=(time - self.base) / 1000,
            dur=None if length == UNKNOWN else length / 1000,
            pid=pid,
            tid=tid,
            args=record.args,
        )

    # --- the file --------------------------------------------------------------------------------------------

    def _packets(self, *, count: bool) -> Iterator[tuple[bytes, Packet]]:
        """Yield every packet and its parts. `count`: remember what cannot be read."""
        stream = Stream(self._path)
        packets = Packets(stream)
        some = False
        for data in packets:
            try:
                found = packet(data)
            except WireError:
                self._lost["packets_damaged"] += count
                continue
            self._lost["packets_compressed"] += count and found.compressed
            some = some or found != Packet()
            yield data, found
        if packets.empty:
            raise self._refused("empty_file", "empty; record it again or remove it")
        if not some:
            raise self._refused("not_a_trace", f"not a Perfetto trace: {packets.fault or 'it has no packet'}")
        fault = packets.fault or (None if stream.fault is None else f"{stream.fault.replace('_', ' ')}")
        if count and fault is not None:
            self.complete = False
            text = f"{fault}; the rest is lost. The rank is excluded from cross-rank numbers; record it again"
            self._note(stream.fault or "truncated", text, "partial")

    def _note(self, kind: str, message: str, level: Level) -> None:
        self.notices.append(Notice(kind=kind, level=level, file=self.label, message=f"{self.label}: {message}"))

    def _refused(self, kind: str, message: str) -> UnreadableTraceError:
        self._note(kind, message, "partial")
        return UnreadableTraceError(self.notices[-1])


_LOST: dict[str, tuple[str, Level]] = {
    "packets_damaged": ("packets cannot be read and were left out, so this rank's numbers are incomplete", "partial"),
    "packets_compressed": ("compressed packets were left out; torch writes none: export the trace again", "partial"),
    "names_missing": ("records refer to names that the file does not have, so their kind may be unknown", "partial"),
    "times_unknown": ("records have a clock that the file does not explain, and were left out", "partial"),
}


def lengths(kinds: Column, tracks: Column, times: Column) -> Column:
    """Return the length of the slice of each begin, in their order; `UNKNOWN` if it has no end.

    torch writes a group's begins and then its ends, in the same order: there the n-th end is that of the n-th begin,
    also if slices touch. Otherwise an end closes the slice of its track that began last, in order of time.
    """
    begins = np.flatnonzero(kinds == BEGIN)
    found = np.full(len(kinds), UNKNOWN)
    changes = np.flatnonzero(np.diff(kinds, prepend=np.int8(0), append=np.int8(0)))
    paired = np.zeros(len(kinds), bool)
    for start, middle, stop in zip(changes, changes[1:], changes[2:], strict=False):
        if kinds[start] != BEGIN or stop - middle != middle - start:
            continue
        first, last = slice(start, middle), slice(middle, stop)
        known = (times[first] != UNKNOWN) & (times[last] != UNKNOWN)
        if (tracks[first] == tracks[last]).all() and (~known | (times[last] >= times[first])).all():
            found[first] = np.where(known, times[last] - times[first], UNKNOWN)
            paired[start:stop] = True
    _by_time(kinds, tracks, times, np.flatnonzero(~paired & (times != UNKNOWN)), found)
    return found[begins]


def _by_time(kinds: Column, tracks: Column, times: Column, rows: Column, found: Column) -> None:
    """Pair the begins and ends among `rows` track by track, as Perfetto does."""
    open_slices: dict[int, list[int]] = {}
    for row in rows[np.argsort(times[rows], kind="stable")].tolist():
        stack = open_slices.setdefault(int(tracks[row]), [])
        if kinds[row] == BEGIN:
            stack.append(row)
        elif stack:
            begin = stack.pop()
            found[begin] = times[row] - times[begin]
