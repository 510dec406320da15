"""Collects the columns of one Chrome trace, block by block, and builds its `RankTrace`."""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rankscope.analysis.core import sm_share
from rankscope.analysis.core.columns import sort_in_place
from rankscope.analysis.core.notices import Notice
from rankscope.analysis.core.on_disk import MANY, OnDisk, Written
from rankscope.analysis.core.record_kinds import ANNOTATION, DEVICE, KERNEL, MEMCPY, is_copy, part_of
from rankscope.analysis.core.sparse import Sparse
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.read.decode import Codes, integers, nanoseconds
from rankscope.analysis.read.kineto.event_schema import Args, Event
from rankscope.analysis.read.rank_trace import (
    CODED,
    COLLECTIVE_COLUMNS,
    DEVICE_COLUMNS,
    HOST_COLUMNS,
    LAUNCH_COLUMNS,
    RankTrace,
    compact,
    rank_number,
)

if TYPE_CHECKING:
    from rankscope.analysis.read.kineto.fast.scanner import Block

_NO_ARGS = Args()
_MOST_CATEGORIES = 1024  # a trace has some ten
CALL_ROW = "call_row"  # in a block: which rows have the columns of collectives
_COLUMNS = {
    "device": (*DEVICE_COLUMNS, *COLLECTIVE_COLUMNS, CALL_ROW),
    "launches": LAUNCH_COLUMNS,
    "host": (*HOST_COLUMNS, CALL_ROW),
}
_FEW = (*COLLECTIVE_COLUMNS, CALL_ROW)  # columns of few rows, which stay in memory
_FIRST = 1 << 10  # rows that a column has room for at first
_SMALL = {"activity": np.int8, "annotation": np.int8}


def _type(name: str) -> type:
    return np.int32 if name in CODED else _SMALL.get(name, np.int64)


class _Growing:
    """A column that rows are added to. It grows in place, so that no second copy of a large column is ever made.

    With many rows it moves to the disk, if there is room.
    """

    def __init__(self, kind: type, *, may_move: bool) -> None:
        self._array: Column = np.empty(_FIRST, kind)
        self._count = 0
        self._may_move = may_move
        self._written: Written | None = None

    def add(self, values: Column) -> None:
        if self._written is not None:
            try:
                self._written.add(values)
                return
            except OSError:  # the disk is full
                self._array, self._written = self._written.read_back(), None
                self._count = len(self._array)
        after = self._count + len(values)
        if after > len(self._array):
            self._array.resize(max(after, 2 * len(self._array)), refcheck=False)
        self._array[self._count : after] = values
        self._count = after
        if self._may_move and after >= MANY:
            self._move()

    def _move(self) -> None:
        self._may_move = False
        try:
            written = Written(self._array.dtype)
            written.add(self._array[: self._count])
        except OSError:  # there is no place for temporary files, or no room
            return
        self._array, self._written = np.empty(0, self._array.dtype), written

    def finish(self) -> Any:
        if self._written is not None:
            try:
                return self._written.column()
            except OSError:  # no descriptor is left
                return self._written.read_back()
        self._array.resize(self._count, refcheck=False)
        return self._array


class Contents(Protocol):
    """What a reader of events knows about its file after it has read all of them."""

    label: str
    metadata: dict[str, Any]
    notices: list[Notice]
    complete: bool
    has_shapes: bool


class OpenRanges:
    """The begun ranges of one thread. Each belongs to two stacks, of its name and of all: a search would be slow."""

    def __init__(self) -> None:
        self._all: list[Event] = []
        self._named: defaultdict[str, list[Event]] = defaultdict(list)
        self._ended: set[int] = set()

    def begin(self, event: Event) -> None:
        self._all.append(event)
        self._named[str(event.name)].append(event)

    def end(self, event: Event) -> Event | None:
        """Return the innermost range that `event` ends: of its name if it has one."""
        stack = self._all if event.name is None else self._named[str(event.name)]
        while stack:
            begun = stack.pop()
            if id(begun) not in self._ended:
                self._ended.add(id(begun))  # it is still in the other stack, so its id stays its own
                return begun
            self._ended.discard(id(begun))
        return None


class Builder:
    """The columns of one file, collected block by block."""

    def __init__(self) -> None:
        self.codes: defaultdict[str, Codes] = defaultdict(Codes)
        self.codes["group_ranks"] = Codes(names=False)  # lists, which are read
        self._tables = {
            part: {name: _Growing(_type(name), may_move=name not in _FEW) for name in names}
            for part, names in _COLUMNS.items()
        }
        self._rows = dict.fromkeys(_COLUMNS, 0)
        self._classes: dict[Any, str | None] = {}
        self._open: defaultdict[tuple[str, str], OpenRanges] = defaultdict(OpenRanges)

    def add(self, block: "list[Event] | Block") -> None:
        """Add a block of events, or a block of columns from the scanner."""
        if isinstance(block, dict):
            for part, columns in block.items():
                self._add(part, columns)
        else:
            self._add_events(block)

    def _add_events(self, events: list[Event]) -> None:
        parts: dict[str, list[Event]] = {"device": [], "launches": [], "host": []}
        classes = self._classes
        for event in events:
            phase = event.ph
            if phase != "X":
                closed = self._close(event) if phase in ("B", "E") else None
                if closed is None:
                    continue
                event = closed
            try:
                part = classes[event.cat]
            except KeyError:
                part = classes[event.cat] = part_of(event.cat)
            except TypeError:
                continue  # the category is not a string
            if part is not None:
                parts[part].append(event)
        for part, chosen in parts.items():
            if chosen:
                self._add(part, getattr(self, f"_{part}")(chosen))

    def _add(self, part: str, columns: dict[str, Column]) -> None:
        """Add rows to a part. `CALL_ROW` says which of them have the columns of collectives."""
        own = self._tables[part]
        if CALL_ROW in columns:
            columns[CALL_ROW] = columns[CALL_ROW] + self._rows[part]
        for name, values in columns.items():
            own[name].add(values)
        self._rows[part] += len(columns["start"])

    def _close(self, event: Event) -> Event | None:
        """Match `B` and `E` of the same thread and name; return the pair as one event with a duration."""
        ranges = self._open[(str(event.pid), str(event.tid))]
        if event.ph == "B":
            ranges.begin(event)
            return None
        begin = ranges.end(event)
        if begin is not None:
            start, end = nanoseconds([begin.ts, event.ts]).tolist()
            known = UNKNOWN not in (start, end) and end >= start
            begin.dur = str((end - start) / 1000) if known else None
        return begin

    def _common(self, events: list[Event]) -> dict[str, Column]:
        return {
            "start": nanoseconds([event.ts for event in events]),
            "duration": nanoseconds([event.dur for event in events]),
            "name": self.codes["name"].encode([event.name for event in events]),
        }

    def _device(self, events: list[Event]) -> dict[str, Column]:
        args = [event.args or _NO_ARGS for event in events]
        stream = integers(item.stream for item in args)
        device = integers(item.device for item in args)
        for column, field in ((stream, "tid"), (device, "pid")):
            if (column == UNKNOWN).any():
                column[:] = np.where(column == UNKNOWN, integers(getattr(e, field) for e in events), column)
        activity = np.array([_activity(event.cat) for event in events], np.int64)
        return self._common(events) | {
            "activity": activity,
            "device": device,
            "stream": stream,
            "correlation": integers(item.correlation for item in args),
            "external_id": _external_ids(args),
            "bytes": integers(item.bytes for item in args),
            "occupancy": integers(item.occupancy for item in args),
            "sm_share": sm_share.shares(item.sm_share for item in args),
            **self._collective(args),
        }

    def _launches(self, events: list[Event]) -> dict[str, Column]:
        return self._common(events) | {
            "thread": self._thread(events),
            "correlation": integers((event.args or _NO_ARGS).correlation for event in events),
        }

    def _host(self, events: list[Event]) -> dict[str, Column]:
        args = [event.args or _NO_ARGS for event in events]
        return self._common(events) | {
            "thread": self._thread(events),
            "external_id": _external_ids(args),
            "annotation": np.array([_annotates(event.cat) for event in events], np.int64),
            **self._collective(args),
        }

    def _thread(self, events: list[Event]) -> Column:
        return self.codes["thread"].encode([(event.pid, event.tid) for event in events])

    def _collective(self, args: list[Args]) -> dict[str, Column]:
        """Return the collective columns of the rows that have them."""
        at = [index for index, item in enumerate(args) if item.collective is not None]
        found = [args[index] for index in at]
        columns: dict[str, Column] = {CALL_ROW: np.array(at, np.int64)}
        for name in COLLECTIVE_COLUMNS:
            values = [getattr(item, name) for item in found]
            if name in CODED:
                columns[name] = self.codes[name].encode([None if v is None else str(v) for v in values])
            else:
                columns[name] = integers(values)
        return columns

    def _table(self, part: str, base: int, words: dict[str, list[str]]) -> Table:
        """Return the collected rows of a table, with `start` in ns since 1970 as everywhere else."""
        joined: dict[str, Any] = {name: column.finish() for name, column in self._tables[part].items()}
        start = joined["start"]
        if isinstance(start, OnDisk):
            joined["start"] = start.with_offset(base, UNKNOWN)
        else:
            np.add(start, base, out=start, where=start != UNKNOWN)
        rows = joined.pop(CALL_ROW, None)
        for name in COLLECTIVE_COLUMNS if rows is not None else ():
            joined[name] = Sparse(rows, joined[name], len(start), -1 if name in CODED else UNKNOWN)
        if part == "device":
            joined = sort_in_place(joined, "start")
        table = Table(joined, {name: words[name] for name in joined if name in CODED})
        if part != "device":
            return table
        copies = table.where("name", is_copy) & (table["activity"] == KERNEL)
        return table.with_columns(activity=np.where(copies, MEMCPY, table["activity"])).moved()

    def finish(self, reader: Contents, base: int) -> RankTrace:
        """Return the trace; `base` is the origin of the file's times (ns since 1970)."""
        metadata = reader.metadata
        words = {name: self.codes[name].words for name in CODED}
        tables = {part: self._table(part, base, words) for part in _COLUMNS}
        info = metadata.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        return RankTrace(
            files=[reader.label],
            rank=rank_number(_known_int(info.get("rank"))),
            device=tables["device"],
            launches=tables["launches"],
            host=tables["host"],
            world_size=rank_number(_known_int(info.get("world_size"))),
            backend=info.get("backend") if isinstance(info.get("backend"), str) else None,
            groups=_groups(info),
            descriptions=_descriptions(info),
            host_id=_host_id(metadata),
            complete=reader.complete,
            notices=reader.notices,
            extra={key: value for key, value in metadata.items() if key in _KEPT} | {HAS_SHAPES: reader.has_shapes},
        )


HAS_SHAPES = "rankscope_has_shapes"
_KEPT = ("deviceProperties", "trace_id", "with_stack", "record_shapes", "baseTimeNanoseconds")


@lru_cache(_MOST_CATEGORIES)
def _annotates(category: str) -> bool:
    return category.lower() in ANNOTATION


@lru_cache(_MOST_CATEGORIES)
def _activity(category: str) -> int:
    return DEVICE[category.lower()]


def _external_ids(args: list[Args]) -> Column:
    current = [item.external_id for item in args]
    if None in current:
        current = [item.external_id if item.external_id is not None else item.external_id_before_1_12 for item in args]
    return integers(current)


def _known_int(value: Any) -> int | None:
    number = int(integers([value])[0])
    return None if number == UNKNOWN else number


def _descriptions(info: dict[str, Any]) -> dict[str, str]:
    configs = info.get("pg_config")
    return {
        str(config.get("pg_name")): config["pg_desc"]
        for config in (configs if isinstance(configs, list) else [])
        if isinstance(config, dict) and isinstance(config.get("pg_desc"), str)
    }


def _groups(info: dict[str, Any]) -> dict[str, Sequence[int]]:
    configs = info.get("pg_config")
    groups: dict[str, Sequence[int]] = {}
    for config in configs if isinstance(configs, list) else []:
        if isinstance(config, dict) and isinstance(config.get("ranks"), list):
            ranks = [int(rank) for rank in config["ranks"] if isinstance(rank, int)]
            groups[str(config.get("pg_name"))] = compact(ranks)
    return groups


def _host_id(metadata: dict[str, Any]) -> str | None:
    """Return the host id that our own harness wrote; other writers give none."""
    boot_id, host = metadata.get("rankscope_boot_id"), metadata.get("rankscope_host")
    return f"{boot_id} {host}" if isinstance(boot_id, str) else None
