"""Reader of Chrome traces that torch.profiler (Kineto) wrote, of any version: one file in, a `RankTrace` out."""

import importlib.util
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankscope.analysis.core import sm_share
from rankscope.analysis.core.kinds import ANNOTATION, DEVICE, is_launch, part_of
from rankscope.analysis.core.notices import Notice, UnreadableTraceError
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.read.decode import Codes, integers, nanoseconds
from rankscope.analysis.read.kineto import stream
from rankscope.analysis.read.kineto.event_schema import Args, Event
from rankscope.analysis.read.kineto.events import EventReader
from rankscope.analysis.read.rank_trace import (
    CODED,
    COLLECTIVE_COLUMNS,
    DEVICE_COLUMNS,
    HOST_COLUMNS,
    LAUNCH_COLUMNS,
    RankTrace,
    empty_table,
    rank_number,
)

if TYPE_CHECKING:
    from rankscope.analysis.read.kineto.fast.scanner import Block

_NO_ARGS = Args()


def has_scanner() -> bool:
    """Return whether the accelerated scanner can be used: numba is installed (`rankscope[fast]`)."""
    return importlib.util.find_spec("numba") is not None


def warm_up() -> None:
    """Compile the scanner where numba works: processes that start later find the compiled code."""
    try:
        from rankscope.analysis.read.kineto.fast.scanner import kernels

        kernels()
    except ImportError:
        return


def read(path: Path, label: str | None = None, *, fast: bool | None = None, window: int | None = None) -> RankTrace:
    """Read one trace file, which notices call `label`; `UnreadableTraceError` when it gives no numbers at all.

    `fast` says whether to use the accelerated scanner (default: where it is installed); `window` is the number of
    bytes looked at together. Neither changes the result.
    """
    reader, builder = start(path, label, fast=fast, window=window)
    for block in reader:
        builder.add(block)
    trace = builder.finish(reader)
    check_activity(trace)
    return trace


_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d+)')


def rank_inside(path: Path) -> int | None:
    """Return the rank that the beginning of a trace states, None where it states none or cannot be read."""
    try:
        match = _RANK.search(next(iter(stream.Stream(path, 1 << 16)), b""))
    except OSError:
        return None
    return int(match[1]) if match else None


def start(path: Path, label: str | None, *, fast: bool | None, window: int | None) -> "tuple[EventReader, Builder]":
    """Return what reads a file and what collects its columns; see `read`."""
    builder = Builder()
    scanner = None
    if has_scanner() if fast is None else fast:
        try:
            from rankscope.analysis.read.kineto.fast.scanner import WINDOW, Scanner

            scanner = Scanner(builder.codes)
            window = window or WINDOW
        except ImportError:  # numba that does not fit this numpy or Python: the other way reads everything too
            scanner = None
    return EventReader(path, label or path.name, window or stream.WINDOW, scanner), builder


_COLUMNS = {"device": DEVICE_COLUMNS + COLLECTIVE_COLUMNS, "launches": LAUNCH_COLUMNS, "host": HOST_COLUMNS}


class Builder:
    """Collects the columns of one file, block by block."""

    def __init__(self) -> None:
        self.codes: defaultdict[str, Codes] = defaultdict(Codes)
        self._tables: dict[str, list[dict[str, Column]]] = {"device": [], "launches": [], "host": []}
        self._classes: dict[Any, str | None] = {}
        self._open: defaultdict[tuple[Any, Any, Any], list[Event]] = defaultdict(list)

    def add(self, block: "list[Event] | Block") -> None:
        """Take a block of events, or of columns that the scanner made of them."""
        if isinstance(block, dict):
            for part, columns in block.items():
                self._tables[part].append(columns)
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
                continue  # a category that is no string
            if part is not None:
                parts[part].append(event)
        for part, chosen in parts.items():
            if chosen:
                self._tables[part].append(getattr(self, f"_{part}")(chosen))

    def _close(self, event: Event) -> Event | None:
        """Match `B` and `E` of one thread and name; the pair becomes one event with a length."""
        stack = self._open[(str(event.pid), str(event.tid), None)]
        if event.ph == "B":
            stack.append(event)
            return None
        for index in range(len(stack) - 1, -1, -1):
            if event.name is None or stack[index].name == event.name:
                begin = stack.pop(index)
                start, end = nanoseconds([begin.ts, event.ts]).tolist()
                known = UNKNOWN not in (start, end) and end >= start
                begin.dur = str((end - start) / 1000) if known else None
                return begin
        return None

    def _common(self, events: list[Event]) -> dict[str, Column]:
        return {
            "start": nanoseconds([event.ts for event in events]),
            "duration": nanoseconds([event.dur for event in events]),
            "name": self.codes["name"].encode([event.name for event in events]),
            "offset": np.full(len(events), UNKNOWN),
        }

    def _device(self, events: list[Event]) -> dict[str, Column]:
        args = [event.args or _NO_ARGS for event in events]
        stream = integers(item.stream for item in args)
        device = integers(item.device for item in args)
        for column, field in ((stream, "tid"), (device, "pid")):
            if (column == UNKNOWN).any():
                column[:] = np.where(column == UNKNOWN, integers(getattr(e, field) for e in events), column)
        activity = np.array([DEVICE[str(event.cat).lower()] for event in events], np.int64)
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
            "annotation": np.array([str(event.cat).lower() in ANNOTATION for event in events], np.int64),
            **self._collective(args),
        }

    def _thread(self, events: list[Event]) -> Column:
        return self.codes["thread"].encode([(event.pid, event.tid) for event in events])

    def _collective(self, args: list[Args]) -> dict[str, Column]:
        """Return the collective's columns; few records have them, so they are filled in sparsely."""
        at = [index for index, item in enumerate(args) if item.collective is not None]
        found = [args[index] for index in at]
        columns: dict[str, Column] = {}
        for name in COLLECTIVE_COLUMNS:
            values = [getattr(item, name) for item in found]
            if name in CODED:
                columns[name] = np.full(len(args), -1, np.int32)
                columns[name][at] = self.codes[name].encode([None if v is None else str(v) for v in values])
            else:
                columns[name] = np.full(len(args), UNKNOWN, np.int64)
                columns[name][at] = integers(values)
        return columns

    def rows(self, part: str) -> int:
        """Return how many rows of a table are waiting."""
        return sum(len(block["start"]) for block in self._tables[part])

    def table(self, part: str) -> Table:
        """Return the rows of a table that came since the last call, `start` not yet counted from 1970."""
        columns = (*_COLUMNS[part], "offset")
        blocks = self._tables[part] or [dict(empty_table(columns).columns)]
        self._tables[part] = []
        joined = {name: np.concatenate([block.pop(name) for block in blocks]) for name in columns}
        return Table(joined, {name: self.codes[name].words for name in columns if name in CODED})

    def finish(self, reader: EventReader, tables: dict[str, Table] | None = None) -> RankTrace:
        """Return everything that was read; `tables` where somebody took them away meanwhile."""
        metadata = reader.metadata
        tables = tables or {part: from_1970(self.table(part), base_time(metadata)) for part in _COLUMNS}
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
            host_id=_host_id(metadata),
            complete=reader.complete,
            notices=reader.notices,
            extra={key: value for key, value in metadata.items() if key in _KEPT},
        )


def base_time(metadata: dict[str, Any]) -> int:
    """Return what the times of a file are counted from (ns since 1970)."""
    base = int(integers([metadata.get("baseTimeNanoseconds")])[0])
    return 0 if base == UNKNOWN else base


def from_1970(table: Table, base: int) -> Table:
    """Return the table with `start` as it is used everywhere else: ns since 1970."""
    start = table["start"]
    return table.with_columns(start=np.where(start != UNKNOWN, start + base, UNKNOWN))


_KEPT = ("deviceProperties", "trace_id", "with_stack", "baseTimeNanoseconds")


def _external_ids(args: list[Args]) -> Column:
    current = [item.external_id for item in args]
    if None in current:
        current = [item.external_id if item.external_id is not None else item.external_id_before_1_12 for item in args]
    return integers(current)


def _known_int(value: Any) -> int | None:
    number = int(integers([value])[0])
    return None if number == UNKNOWN else number


def _groups(info: dict[str, Any]) -> dict[str, list[int]]:
    configs = info.get("pg_config")
    groups = {}
    for config in configs if isinstance(configs, list) else []:
        if isinstance(config, dict) and isinstance(config.get("ranks"), list):
            groups[str(config.get("pg_name"))] = [int(rank) for rank in config["ranks"] if isinstance(rank, int)]
    return groups


def _host_id(metadata: dict[str, Any]) -> str | None:
    """Return what our own harness wrote of the host; other writers say nothing."""
    boot_id, host = metadata.get("rankscope_boot_id"), metadata.get("rankscope_host")
    return f"{boot_id} {host}" if isinstance(boot_id, str) else None


def check_activity(trace: RankTrace) -> None:
    """Refuse a file that recorded nothing, or launches without one GPU record: its shares would be zeros."""
    name = trace.files[0]
    if len(trace.device):
        return
    calls = trace.launches.words["name"]
    launching = np.array([is_launch(call) for call in calls] or [False])
    launches = int(launching[trace.launches["name"]].sum()) if len(trace.launches) else 0
    if launches:
        message = (
            f"{name}: {launches} launches but not one GPU record: CUPTI did not run (another profiler attached, "
            "or no permission); record it again with one profiler at a time"
        )
        kind, details = "gpu_records_missing", {"launches": launches}
    elif not len(trace.host):
        message, kind, details = f"{name}: no activity recorded; was the active window reached?", "no_activity", {}
    else:
        return
    notice = Notice(kind=kind, level="partial", rank=trace.rank, file=name, message=message, details=details)
    raise UnreadableTraceError(notice)
