"""The points and edges of one rank with a device: its threads, its streams, and what they wait for.

Input: a rank's tables on the common clock. Output: `Part`, with rows that `build` joins to the graph of all ranks.

- A thread does one call after the other; the time between is work on the host, or waiting for a batch. Where threads
  take turns (the autograd engine's and the caller's), a call follows the last one that had ended, on either.
- A record starts after its launch, after the record before it on its stream, and after what its stream was told to wait
  for: a collective waits for the work launched before it, and the work after an event wait for the collectives before.
- A call that waits for the device returns after the record that ended last before it returned.
- The host also needs time for the memory of a copy that is not pinned, to get it or to return it. No record shows this:
  what it does after such a copy, before it launches a kernel, may be that if it takes at most about as long. It counts
  as copy and as work on the host.
"""

import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.intervals import Intervals
from rankscope.analysis.core.record_kinds import COMMUNICATION, COMPUTE, COPY
from rankscope.analysis.core.table import Column, Table
from rankscope.analysis.replay import starts
from rankscope.analysis.replay.graph import NONE, Work
from rankscope.analysis.replay.part import Part

_SHORT_NS = 10_000  # a call that takes longer may have waited for the device
_FULL_QUEUE = 512  # launches that have not started: the driver holds about a thousand, fewer with several streams
_LONG_NS = 1_000_000  # a copy or a pause that takes longer has much memory to do with
_MEMORY = 1.25  # times a copy: 1.0 and 1.2 were seen for copies to a device, far less for those from it
_TAIL_NS = 50_000  # from the end of a record to the return of the call that waited for it
_OF_ROLE = {COMPUTE: Work.COMPUTE, COPY: Work.COPY, COMMUNICATION: Work.COMMUNICATION}


def part_of(records: Table, calls: Table, waits: Intervals) -> Part:
    """Return points and edges of one rank.

    `records`: its device records, with `launched` (row of `calls` or NONE) and `shared` (a collective whose partners
    are known). `calls`: the runtime calls of the threads that launch work, sorted by start. `waits`: when it waited for
    a batch. `name` is a code into the names of the graph. All times are on the common clock.
    """
    host = _host_rows(calls, waits)
    count = len(host)
    time = np.empty(2 * (count + len(records)), np.int64)
    time[0 : 2 * count : 2], time[1 : 2 * count : 2] = host["start"], host["end"]
    first = 2 * count + 2 * np.arange(len(records))
    time[first], time[first + 1] = records["start"], records["end"]
    ends = np.full(len(time), NONE)
    ends[first + 1] = records["boundary"]
    part = Part(time=time, starts=first, finishes=first + 1, ends=ends)
    row_of_call = np.full(len(calls) + 1, NONE)
    row_of_call[host["call"][host["call"] != NONE]] = np.flatnonzero(host["call"] != NONE)
    records = records.with_columns(
        launched_at=np.where(records["launched"] >= 0, 2 * row_of_call[records["launched"]], NONE)
    )
    awaited, copying = _awaited(host, records)
    _thread(part, host, _memory(host, records, copying))
    _calls(part, host, records, awaited, copying)
    _records(part, records, calls)
    return part


def _host_rows(calls: Table, waits: Intervals) -> Table:
    """Return what the host did in order: calls, and waits for a batch (call NONE). None ends after its successor."""
    fields = {
        "start": np.concatenate([calls["start"], waits[0]]),
        "end": np.concatenate([calls["end"], waits[1]]),
        "thread": np.concatenate([calls["thread"], np.full(waits.shape[1], NONE)]),
        "name": np.concatenate([calls["name"], np.full(waits.shape[1], NONE)]),
        "call": np.concatenate([np.arange(len(calls)), np.full(waits.shape[1], NONE)]),
        "syncs": np.concatenate([calls["syncs"], np.zeros(waits.shape[1], bool)]),
        "copies": np.concatenate([calls["copies"], np.zeros(waits.shape[1], bool)]),
        "step": np.concatenate([calls["step"], np.full(waits.shape[1], NONE)]),
    }
    rows = Table(fields).sort("start")
    end = rows["end"].copy()
    for own in group_by.positions(rows["thread"]).values():
        end[own[:-1]] = np.minimum(end[own[:-1]], rows["start"][own[1:]])
    inside = (rows["thread"][:-1] == NONE) & (end[:-1] > rows["start"][1:])  # a call while waiting for a batch
    end[:-1][inside] = rows["start"][1:][inside]
    return rows.with_columns(end=end)


def _memory(host: Table, records: Table, copying: Column) -> Column:
    """Return before which rows the host handles the memory of a copy that is not pinned.

    It does so before it launches a kernel, waits for a batch, or makes another long copy.
    """
    found = np.zeros(len(host), bool)
    ends = np.zeros(len(host), bool)
    ends[records["launched_at"][(records["role"] != COPY) & (records["launched_at"] >= 0)] // 2] = True
    ends |= host["call"] == NONE
    rows = np.flatnonzero(copying >= 0)
    took = records["end"][copying[rows]] - records["start"][copying[rows]]
    long = rows[took >= _LONG_NS]
    ends[long] = True
    pause = np.append(0, host["start"][1:] - host["end"][:-1])
    last = np.append(np.flatnonzero(ends), len(host) - 1)
    for row in long[records["pageable"][copying[long]]].tolist():
        copy = copying[row]
        left = _MEMORY * float(records["end"][copy] - records["start"][copy])
        until = int(last[np.searchsorted(last, row, "right")]) if row < len(host) - 1 else row
        for after in (row + 1 + np.flatnonzero(pause[row + 1 : until + 1] >= _LONG_NS)).tolist():
            left -= pause[after]
            if left < 0:
                break
            found[after] = host["call"][after] != NONE
    return found


def _thread(part: Part, host: Table, memory: Column) -> None:
    """Join what the host did: each row to the last one that had ended, on its own thread or on one that took turns.

    `memory`: before which rows it handles memory.
    """
    at = np.arange(len(host))
    same = np.full(len(host), NONE)
    for own in group_by.positions(host["thread"]).values():
        same[own[1:]] = own[:-1]
    before = at - 1
    later = (same >= 0) & (host["end"][same] >= host["end"][before])
    free = (before >= 0) & (host["end"][before] <= host["start"]) & ~later
    source = np.where(free, before, same)
    point = np.where(source >= 0, 2 * source + 1, 2 * before)  # a thread's first call follows the start of another
    rows = at[1:]
    part.add(
        source=point[rows],
        target=2 * rows,
        weight=part.time[2 * rows] - part.time[point[rows]],
        work=np.where(memory[rows], int(Work.MEMORY), int(Work.HOST)),
        step=host["step"][rows],
        name=NONE,
    )


def _calls(part: Part, host: Table, records: Table, awaited: Column, copying: Column) -> None:
    """Add the time inside calls, and what those that waited for the device waited for."""
    took = host["end"] - host["start"]
    rows = np.flatnonzero(awaited >= 0)
    ended = records["end"][awaited[rows]]
    blocked = copying >= 0
    blocked[rows] = (ended >= host["start"][rows]) & (host["end"][rows] - ended <= _TAIL_NS)
    blocked &= took > _SHORT_NS
    rows = rows[blocked[rows] | host["syncs"][rows]]
    on, syncs = awaited[rows], host["syncs"][rows]
    of_copy = syncs & (records["role"][on] == COPY) & (records["end"][on] - records["start"][on] > _SHORT_NS)
    part.add(
        source=part.finishes[on],
        target=2 * rows + 1,
        weight=np.where(blocked[rows], host["end"][rows] - records["end"][on], 0),
        work=np.where(of_copy, int(Work.COPY), np.where(syncs, int(Work.SYNC), int(Work.LATENCY))),
        step=host["step"][rows],
        name=np.where(of_copy, records["name"][on], host["name"][rows]),
    )
    _copies(part, host, records, copying)
    rows = np.arange(len(host))
    part.add(
        source=2 * rows,
        target=2 * rows + 1,
        weight=np.where(blocked, np.minimum(took, _SHORT_NS // 2), took),
        work=np.where(host["call"] == NONE, int(Work.LOADER), int(Work.LAUNCH)),
        step=host["step"],
        name=host["name"],
    )


def _copies(part: Part, host: Table, records: Table, copying: Column) -> None:
    """Let calls that copy by themselves last as long as their copy. They return a little before or after its end."""
    rows = np.flatnonzero(copying >= 0)
    copied = copying[rows]
    part.add(
        source=part.starts[copied],
        target=2 * rows + 1,
        weight=host["end"][rows] - records["start"][copied],
        work=int(Work.COPY),
        step=host["step"][rows],
        name=records["name"][copied],
    )


def _awaited(host: Table, records: Table) -> tuple[Column, Column]:
    """Return the record that each call may have waited for, and the one that it copied itself; NONE if there is none.

    A synchronising call waits for the last record, and a launch into a full queue for one that made room. If memory is
    pageable, the driver copies inside the call.
    """
    found, copied = np.full(len(host), NONE), np.full(len(host), NONE)
    if not len(records):
        return found, copied
    order = np.argsort(records["end"], kind="stable")
    last = np.searchsorted(records["end"][order], host["end"], "right") - 1
    found[host["syncs"]] = np.where(last >= 0, order[np.maximum(last, 0)], NONE)[host["syncs"]]
    launched = np.flatnonzero(records["launched_at"] >= 0)
    by = records["launched_at"][launched] // 2
    start, end = records["start"][launched], records["end"][launched]
    inside = host["copies"][by] & (start >= host["start"][by]) & (start <= host["end"][by])
    waited = (end - start > _SHORT_NS) | (host["end"][by] - host["start"][by] > _TAIL_NS)  # for it, or in front of it
    inside &= waited & (end <= host["end"][by] + _TAIL_NS)
    copied[by[inside]] = launched[inside]
    queued = np.searchsorted(np.sort(records["launched_at"][launched]), 2 * np.arange(len(host)))
    begun = np.searchsorted(np.sort(records["start"][launched]), host["end"], "right")
    full = (queued - begun >= _FULL_QUEUE) & (last >= 0) & (found == NONE) & (copied == NONE)
    found[full] = order[last[full]]
    return found, copied


def _records(part: Part, records: Table, calls: Table) -> None:
    """Add the work of the records, except of collectives with known partners, and what each of them starts after."""
    of_role = np.array([int(_OF_ROLE[role]) for role in range(len(_OF_ROLE))])
    own = records.take(~records["shared"])
    part.add(
        source=part.starts[~records["shared"]],
        target=part.finishes[~records["shared"]],
        weight=own["end"] - own["start"],
        work=of_role[own["role"]],
        step=own["step"],
        name=own["name"],
        bytes=own["bytes"],
    )
    found = starts.edges(records, calls, part.time, part.starts, part.finishes)
    part.dropped += found.dropped
    ordinary = np.where(found.kind == starts.EVENT, int(Work.ORDER), int(Work.LATENCY))
    part.add(
        source=found.source,
        target=part.starts[found.target],
        weight=found.weight,
        delay=found.delay,
        work=np.where(found.during >= 0, of_role[records["role"][found.during]], ordinary),
        step=records["step"][found.target],
        name=np.where(found.during >= 0, records["name"][found.during], NONE),
    )
