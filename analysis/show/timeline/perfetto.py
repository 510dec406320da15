"""One trace of all ranks for Perfetto and chrome://tracing, on the corrected clock, with one process per rank.

Input: a `Timeline`. Output: gzipped Chrome JSON. A rank's threads show its steps, the parts that tile them, ranges,
communication with waits and transfers inside, and kernels. Counters show the wait and the hidden communication since
the step began. The critical path is a process of its own. Arrows lead from the last rank of a collective to the ranks
that waited for it. Times count from the first event, in us with three decimals: exact to the nanosecond, and small
enough for the doubles that viewers use.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.core.intervals import both, union
from rankscope.analysis.core.json import Json
from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.analysis.replay.critical_path import Stretch
from rankscope.analysis.show.timeline.build import RankView, Timeline
from rankscope.analysis.show.timeline.codes import NAMES, WAIT
from rankscope.analysis.show.timeline.original_events import Originals
from rankscope.analysis.show.timeline.sentences import TITLES, step_name

# Threads of a rank's process, in the order in which viewers show them. Lanes and streams count up from the last two.
STEPS, PARTS, DEVICE_RANGES, HOST_RANGES, COMMUNICATION, STREAMS = 1, 2, 3, 4, 10, 100
_BLOCK = 20_000  # events that are encoded together
_LEVEL = 3  # of compression: half the time of the default level for 10 % more bytes
_SAFE = re.compile(r"[\x00-\x1f]")


def write(path: Path, timeline: Timeline, originals: Originals | None = None, critical: Sequence[Stretch] = ()) -> None:
    """Write the trace. With `originals` it contains every event of the original traces instead of the kernels.

    `critical` is the critical path over all ranks, on the common clock; it becomes a process of its own.
    """
    from isal import igzip

    origin = min(_earliest(view) for view in timeline.views)
    if originals is not None:
        origin = min(origin, originals.earliest([view.rank for view in timeline.views]))
    encoder = msgspec.json.Encoder()
    with igzip.open(path, "wb", compresslevel=_LEVEL) as file:
        file.write(b'{"displayTimeUnit": "ms", "baseTimeNanoseconds": %d, "traceEvents": [\n' % origin)
        separator = b""
        events = chain(_events(timeline, originals, origin), _critical(critical, timeline, origin))
        while block := list(islice(events, _BLOCK)):  # a million events at once would take gigabytes
            file.write(separator + b",\n".join(map(encoder.encode, block)))
            separator = b",\n"
        file.write(b"\n]}\n")


def _earliest(view: RankView) -> int:
    """Return the first time in a rank's tables: viewers drop events before 0."""
    tables = (view.steps, view.parts, view.calls, view.comm, view.ranges, view.host_ranges, view.kernels)
    return min(int(table["start"].min()) for table in tables if len(table))


def _events(timeline: Timeline, originals: Originals | None, origin: int) -> Iterator[Any]:
    for view in timeline.views:
        yield from _rank(view, timeline, origin, kernels=originals is None)
        if originals is not None:
            for block in originals.events(view.rank, origin):
                yield from block
    yield from _arrows(timeline, origin)


def _critical(stretches: Sequence[Stretch], timeline: Timeline, origin: int) -> Iterator[Json]:
    """Yield the critical path, one slice for neighbours of the same rank and work, one thread per rank."""
    if not stretches:
        return
    process = max(view.rank for view in timeline.views) + 1
    yield _meta("process_name", process, {"name": "critical path"})
    yield _meta("process_sort_index", process, {"sort_index": -1})
    for rank in sorted({part.rank for part in stretches}):
        yield _meta("thread_name", process, {"name": f"rank {rank}"}, rank + 1)
    for (rank, work), parts in groupby(stretches, key=lambda part: (part.rank, part.work)):
        own = list(parts)
        names = [part.name for part in own if part.name]
        event = {"ph": "X", "name": work.name.lower(), "pid": process, "tid": rank + 1}
        event |= {"ts": us(own[0].start - origin), "dur": us(own[-1].end - own[0].start)}
        yield event | {"args": {"parts": len(own), "first": _SAFE.sub(" ", names[0]) if names else None}}


def _rank(view: RankView, timeline: Timeline, origin: int, *, kernels: bool) -> Iterator[Json]:
    rank = view.rank
    yield _meta("process_name", rank, {"name": f"rank {rank}"})
    yield _meta("process_sort_index", rank, {"sort_index": rank})
    lane_names = {int(lane): f"communication {lane + 1}" for lane in np.unique(view.calls["lane"]).tolist()}
    if len(lane_names) == 1:
        lane_names = dict.fromkeys(lane_names, "communication")
    threads = {STEPS: "steps", PARTS: "where time goes", DEVICE_RANGES: "ranges on the device"}
    threads |= {HOST_RANGES: "ranges on the CPU"} | {COMMUNICATION + lane: name for lane, name in lane_names.items()}
    streams = np.unique(view.kernels["stream"]).tolist() if kernels and len(view.kernels) else []
    threads |= {STREAMS + index: f"stream {stream}" for index, stream in enumerate(streams)}
    for thread, name in threads.items():
        yield _meta("thread_name", rank, {"name": name}, thread)
        yield _meta("thread_sort_index", rank, {"sort_index": thread}, thread)
    names = [step_name(step) for step in view.steps["step"].tolist()]
    late = [{"lateness_ms": timeline.lateness.get(s, {}).get(rank, 0) * 1e-6} for s in view.steps["step"].tolist()]
    yield from _slices(view.steps, origin, rank, STEPS, names, args=late)
    yield from _slices(view.parts, origin, rank, PARTS, [TITLES[NAMES[code]] for code in view.parts["part"].tolist()])
    yield from _slices(view.ranges, origin, rank, DEVICE_RANGES, view.ranges.texts("name"))
    yield from _slices(view.host_ranges, origin, rank, HOST_RANGES, view.host_ranges.texts("name"))
    yield from _collectives(view, origin)
    for index, stream in enumerate(streams):
        yield from _stream(view.kernels.take(view.kernels["stream"] == stream), origin, rank, STREAMS + index)
    yield from _counters(view, origin)


def _meta(name: str, rank: int, args: Json, thread: int = 0) -> Json:
    return {"ph": "M", "name": name, "pid": rank, "tid": thread, "args": args}


def us(ns: int) -> msgspec.Raw:
    """Return nanoseconds as microseconds with three decimals, exactly."""
    sign, rest = ("-", -ns) if ns < 0 else ("", ns)
    return msgspec.Raw(f"{sign}{rest // 1000}.{rest % 1000:03d}".encode())


def _slices(
    table: Table, origin: int, rank: int, thread: int, names: Iterable[str | None], args: list[Json] | None = None
) -> Iterator[Json]:
    """Yield complete events, without those of zero length."""
    rows = zip((table["start"] - origin).tolist(), (table["end"] - table["start"]).tolist(), names, strict=True)
    for index, (start, duration, name) in enumerate(rows):
        if duration <= 0:
            continue
        event = {"ph": "X", "name": _SAFE.sub(" ", name or "unknown"), "pid": rank, "tid": thread}
        event |= {"ts": us(start), "dur": us(duration)}
        if args is not None:
            event["args"] = args[index]
        yield event


def _stream(kernels: Table, origin: int, rank: int, thread: int) -> Iterator[Json]:
    """Yield the records of a stream. A record that overlaps the next one is cut where the next one begins.

    Viewers drop a slice that overlaps another without nesting (seen with kernels of one graph launch).
    """
    table = kernels.take(np.lexsort([-kernels["end"], kernels["start"]]))
    end = table["end"].copy()
    end[:-1] = np.minimum(end[:-1], table["start"][1:])
    return _slices(table.with_columns(end=end), origin, rank, thread, table.texts("name"))


def _collectives(view: RankView, origin: int) -> Iterator[Json]:
    """Yield each collective, with its wait and its transfer nested in it."""
    calls = view.calls
    kinds, groups = calls.texts("kind"), calls.texts("group")
    for row, lane in enumerate(calls["lane"].tolist()):
        start, ready, end = (int(calls[name][row]) for name in ("start", "ready", "end"))
        args: Json = {
            "group": groups[row],
            "bytes": _known(calls["bytes"][row]),
            "call": _known(calls["call"][row], -1),
        }
        args |= {"exposed_ms": int(calls["exposed"][row]) * 1e-6, "lateness_ms": _ms(calls["lateness"][row])}
        place = {"ph": "X", "pid": view.rank, "tid": COMMUNICATION + lane}
        kind = kinds[row] or "collective"
        if end > start:
            yield place | {"name": kind, "ts": us(start - origin), "dur": us(end - start), "args": args}
        if ready == UNKNOWN:
            continue
        for name, left, right in (("wait", start, ready), ("transfer", ready, end)):
            if right > left:
                yield place | {"name": name, "ts": us(left - origin), "dur": us(right - left)}


def _known(value: Any, unknown: int = UNKNOWN) -> int | None:
    return None if value == unknown else int(value)


def _ms(value: Any) -> float | None:
    return None if value == UNKNOWN else int(value) * 1e-6


def _counters(view: RankView, origin: int) -> Iterator[Json]:
    """Yield counters that grow from 0 in each step: ms of wait, and ms of communication that compute hides."""
    waits = view.comm.take(view.comm["part"] == WAIT)
    hidden = view.comm.take(view.comm["hidden"])
    for name, table in (("wait in the step (ms)", waits), ("overlap in the step (ms)", hidden)):
        merged = union(table["start"], table["end"])
        for start, end in zip(view.steps["start"].tolist(), view.steps["end"].tolist(), strict=True):
            inside = both(merged, union(np.array([start]), np.array([end])))
            total = 0
            points = [(start, 0)]
            for left, right in inside.T.tolist():
                points.append((left, total))
                total += right - left
                points.append((right, total))
            for at, value in points:
                yield {"ph": "C", "name": name, "pid": view.rank, "ts": us(at - origin), "args": {"ms": value * 1e-6}}


def _arrows(timeline: Timeline, origin: int) -> Iterator[Json]:
    """Yield arrows for each collective: from its start on the last rank to its transfer on every other rank."""
    members: dict[int, list[tuple[int, int, int, int]]] = {}
    for view in timeline.views:
        calls = view.calls
        split = (calls["call"] >= 0) & (calls["ready"] != UNKNOWN) & (calls["end"] > calls["ready"])
        columns = (calls[name][split].tolist() for name in ("call", "start", "ready", "lane"))
        for call, start, ready, lane in zip(*columns, strict=True):
            members.setdefault(call, []).append((view.rank, start, ready, lane))
    for call, ranks in members.items():
        last, start, _, lane = max(ranks, key=lambda item: item[1])
        for rank, _, ready, other in ranks:
            if rank == last:
                continue
            flow = {"name": "released", "cat": "collective", "id": (call << 20) + rank}
            yield flow | {"ph": "s", "pid": last, "tid": COMMUNICATION + lane, "ts": us(start - origin)}
            end = {"ph": "f", "bp": "e", "pid": rank, "tid": COMMUNICATION + other, "ts": us(ready - origin)}
            yield flow | end
