"""What each device record starts after: its launch, the record before it on its stream, and events of other streams.

Input: a rank's records and calls. Output: `Starts`, a row per dependency. Profilers record which stream waits for an
event, but seldom for which record. So the order of the calls tells: an event wait before the launch of a collective
makes it wait for the work launched before; one before any other launch makes that work wait for the collectives
launched before. If a record starts later than all of these allow, but just when a record of another stream ends, it
waited for that one. Records of one stream can overlap: the kernels of a graph, and a kernel that may start while the
one before it ends (programmatic dependent launch). Such a record starts some time after the start of the one before.
"""

import msgspec
import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.record_kinds import COMMUNICATION
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.replay.graph import NONE

NOISE_NS = 20_000  # a start this much after all that it waits for is ordinary latency
LAUNCH, STREAM, EVENT, OVERLAP = 0, 1, 2, 3
_NONE = np.zeros(0, np.int64)
_USUAL = 10  # percentile of latencies: the shortest ones, without outliers


class Starts(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies of records: `source` is a point, `target` a row of the records; times in ns."""

    source: Column
    target: Column
    kind: Column
    weight: Column
    delay: Column  # what nothing explains
    during: Column  # the record in whose time an overlapping one starts; NONE for other kinds
    dropped: int  # dependencies that the recorded times contradict


def edges(records: Table, calls: Table, time: Column, starts: Column, finishes: Column) -> Starts:
    """Return what the records start after.

    `starts` and `finishes` are the points at which the records start and end, `time` that of all points.
    """
    during = _overlapped(records)
    overlaps = np.flatnonzero(during >= 0)
    parts = [_launches(records), _streams(records, finishes), _events(records, calls, finishes)]
    parts.append((starts[during[overlaps]], overlaps, np.full(len(overlaps), OVERLAP)))
    source, target, kind = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    possible = records["start"][target] >= time[source]
    dropped = int((~possible).sum())
    source, target, kind = source[possible], target[possible], kind[possible]
    weight, rest = _latencies(records, time, source, target, kind)
    lonely = np.setdiff1d(np.arange(len(records)), target)
    guessed = _just_ended(records, np.concatenate([np.flatnonzero(rest > NOISE_NS), lonely]), lonely)
    if len(guessed[0]):
        source = np.concatenate([source, finishes[guessed[0]]])
        target = np.concatenate([target, guessed[1]])
        kind = np.concatenate([kind, np.full(len(guessed[0]), EVENT)])
        weight, rest = _latencies(records, time, source, target, kind)
    delay = np.where(rest > NOISE_NS, rest, 0)[target]
    during = np.where(kind == OVERLAP, during[target], NONE)
    return Starts(source=source, target=target, kind=kind, weight=weight, delay=delay, during=during, dropped=dropped)


def _latencies(records: Table, time: Column, source: Column, target: Column, kind: Column) -> tuple[Column, Column]:
    """Return the weight of each dependency, and the rest of each record's start that they do not explain (ns).

    The usual latency of a kind is the shortest that is seen where it decided. The dependency that decides a start takes
    what was recorded; the others take the usual latency.
    """
    between = records["start"][target] - time[source]
    nearest = np.full(len(records), np.iinfo(np.int64).max)
    np.minimum.at(nearest, target, between)
    last = between == nearest[target]
    usual = np.zeros(4, np.int64)
    usual[OVERLAP] = np.iinfo(np.int64).max
    for each in (LAUNCH, STREAM, EVENT):
        seen = between[(kind == each) & last]
        usual[each] = min(np.percentile(seen, _USUAL), NOISE_NS) if len(seen) else 0
    weight = np.minimum(usual[kind], between)
    came = np.full(len(records), UNKNOWN)
    np.maximum.at(came, target, time[source] + weight)
    rest = np.where(came == UNKNOWN, 0, records["start"] - came)
    decides = (time[source] + weight == came[target]) & (rest[target] <= NOISE_NS)
    return np.where(decides, between, weight), rest


def _launches(records: Table) -> tuple[Column, Column, Column]:
    rows = np.flatnonzero(records["launched_at"] >= 0)
    return records["launched_at"][rows], rows, np.full(len(rows), LAUNCH)


def _streams(records: Table, finishes: Column) -> tuple[Column, Column, Column]:
    """Return for each record the last one of its stream that had ended."""
    sources, targets = [_NONE], [_NONE]
    for rows in group_by.positions(records["stream"]).values():
        by_end = rows[np.argsort(records["end"][rows], kind="stable")]
        last = np.searchsorted(records["end"][by_end], records["start"][rows], "right") - 1
        source = by_end[np.maximum(last, 0)]
        found = (last >= 0) & (source != rows)
        sources.append(source[found])
        targets.append(rows[found])
    source, target = np.concatenate(sources), np.concatenate(targets)
    return finishes[source], target, np.full(len(source), STREAM)


def _overlapped(records: Table) -> Column:
    """Return the record before each on its stream if it had not ended; NONE if it had, or if one ended just before."""
    during = np.full(len(records), NONE)
    for rows in group_by.positions(records["stream"]).values():
        own = rows[np.lexsort([records["end"][rows], records["start"][rows]])]
        inside = records["end"][own[:-1]] > records["start"][own[1:]]
        by_end = np.sort(records["end"][own])
        last = np.searchsorted(by_end, records["start"][own[1:]], "right") - 1
        just = (last >= 0) & (records["start"][own[1:]] - by_end[np.maximum(last, 0)] <= NOISE_NS)
        during[own[1:]] = np.where(inside & ~just, own[:-1], NONE)
    return during


def _events(records: Table, calls: Table, finishes: Column) -> tuple[Column, Column, Column]:
    """Return what collectives wait for and what waits for them, by the order of the calls."""
    waits = calls["start"][calls["event_wait"]]
    known = np.flatnonzero(records["launched_at"] >= 0)
    order = known[np.argsort(records["launch_start"][known], kind="stable")]
    told = np.searchsorted(waits, records["launch_start"][order])  # event waits before each launch
    pairs: list[tuple[int, int]] = []
    pending: list[int] = []
    latest, before = NONE, 0
    start, end = records["start"].tolist(), records["end"].tolist()
    rows = zip(order.tolist(), told.tolist(), (records["role"][order] == COMMUNICATION).tolist(), strict=True)
    for row, count, communicates in rows:
        if communicates:
            if latest != NONE and end[latest] <= start[row]:
                pairs.append((latest, row))
            pending.append(row)
        else:
            if count > before and pending:
                ended = [one for one in pending if end[one] <= start[row]]
                pairs += [(one, row) for one in ended]
                pending = [one for one in pending if end[one] > start[row]]
            latest = row
        before = count
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return finishes[found[:, 0]], found[:, 1], np.full(len(found), EVENT)


def _just_ended(records: Table, late: Column, lonely: Column) -> tuple[Column, Column]:
    """Return for each late record the record of another stream that ended just before it starts, if there is one.

    A lonely record, for which nothing else is known, starts some time after the last one that had ended.
    """
    order = np.argsort(records["end"], kind="stable")
    last = np.searchsorted(records["end"][order], records["start"][late], "right") - 1
    source = order[np.maximum(last, 0)]
    near = records["start"][late] - records["end"][source] <= NOISE_NS
    found = (last >= 0) & (source != late)
    found &= (near & (records["stream"][source] != records["stream"][late])) | np.isin(late, lonely)
    return source[found], late[found]
