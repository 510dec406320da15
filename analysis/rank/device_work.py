"""Prepares the device records of a rank: which device stands for it, impossible records out, kinds, steps.

Input: a `RankTrace` and its steps. Output: one table per device of the process, with the columns that `RankData` needs.
"""

import re
from collections.abc import Callable

import numpy as np

from rankscope.analysis.core.intervals import Intervals, union
from rankscope.analysis.core.name_patterns import found_in
from rankscope.analysis.core.record_kinds import COMMUNICATION, COMPUTE, COPY, KERNEL
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.rank.classify import classify, says_nothing, with_cpu_metadata
from rankscope.analysis.rank.coverage import coverage, without_records, work_calls
from rankscope.analysis.rank.rank_data import DeviceWork
from rankscope.analysis.rank.steps import device_windows, step_of_device_work
from rankscope.analysis.read.rank_trace import RankTrace, end_of, launch_of

MAX_DURATION = 7 * 86400 * 10**9  # ns
_COMMUNICATES = 0.5  # share of a stream's time from which it is one of communication
_NOTED = 0.02  # of the time of communication
MOST_DEVICES = 64  # of one process; no host has more
CLOCK_NOISE = 1_000_000  # ns by which a kernel may seem to start before its own launch
Note = Callable[..., None]
_GRAPH = found_in(re.compile("graph", re.IGNORECASE))


def device_tables(trace: RankTrace, launches: Table, steps: Table, note: Note) -> list[Table]:
    """Return the records of each device, the one that stands for the rank first: the one with the most records."""
    launch = launch_of(trace.device["correlation"], launches)
    table = trace.device.with_columns(
        end=end_of(trace.device),
        launch_start=np.where(launch >= 0, launches["start"][launch] if len(launches) else UNKNOWN, UNKNOWN),
        launch_name=launches["name"][launch] if len(launches) else np.full(len(trace.device), -1, np.int32),
        launch_thread=launches["thread"][launch] if len(launches) else np.full(len(trace.device), -1, np.int32),
        described=(trace.device["collective"] >= 0).astype(np.int64),
    )
    table = Table(table.columns, {**table.words, "launch_name": launches.words["name"]}).moved()
    devices, counts = np.unique(table["device"], return_counts=True)
    order = devices[np.argsort(-counts, kind="stable")].tolist()
    if len(order) > 1:
        listed = ", ".join(map(str, devices.tolist()[:MOST_DEVICES]))
        text = f"work on devices {listed}; the rank's numbers are those of device {order[0]}, the others have their own"
        note("several_devices", f"{text}: one process per device is usual", device=order[0])
    if len(order) > MOST_DEVICES:
        note("too_many_devices", f"{len(order)} devices: only the {MOST_DEVICES} with the most records count")
    return [
        _of_device(table.take(table["device"] == device), trace.host, steps, note) for device in order[:MOST_DEVICES]
    ]


def _of_device(table: Table, host: Table, steps: Table, note: Note) -> Table:
    table = _possible(table, note).sort("start")
    table = with_cpu_metadata(table, host)
    kind, words, role = classify(table)
    table = Table({**table.columns, "kind": kind, "role": role}, {**table.words, "kind": words}).moved()
    return table.with_columns(step=step_of_device_work(table, steps)).moved()


def covered_launches(steps: Table, tables: list[Table], launches: Table, note: Note) -> tuple[Column, Column]:
    """Return the columns of `coverage`, and report calls that leave no record."""
    work = Table.concat(tables)
    calls = work_calls(launches)
    absent = without_records(work, calls)
    if absent:
        words = ", ".join(f"{count} {name}" for name, count in sorted(absent.items()))
        text = f"{words} left no record: the driver did them in another way; their time is not in copy"
        note("calls_without_record", text, "info", calls=absent)
    return coverage(steps, work, calls)


def other_devices(tables: list[Table], steps: Table, covered: tuple[Column, Column], waits: Table) -> list[DeviceWork]:
    """Return the work on the devices that do not stand for the rank."""
    return [
        DeviceWork(
            device=int(table["device"][0]),
            steps=device_windows(steps, table, covered, waits, "device"),
            compute=of_role(table, COMPUTE),
            comm=of_role(table, COMMUNICATION),
            copies=of_role(table, COPY),
            span=(int(table["start"].min()), int(table["end"].max())),
            records=len(table),
        )
        for table in tables
        if len(table)
    ]


def note_unnamed(table: Table, note: Note) -> None:
    """Report compute kernels whose names say nothing on a stream that otherwise communicates: are they collectives?"""
    unnamed = table.where("name", says_nothing) & (table["role"] == COMPUTE)
    if not unnamed.any():
        return
    took = table["end"] - table["start"]
    streams, at = np.unique(table["stream"], return_inverse=True)
    comm = np.bincount(at.ravel(), took * (table["role"] == COMMUNICATION), len(streams))
    whole = np.bincount(at.ravel(), took * 1.0, len(streams))
    busy = (comm > _COMMUNICATES * whole) & (comm > 0)
    if not busy.any():
        return
    rows = np.flatnonzero(busy[at.ravel()] & unnamed)
    if not len(rows) or took[rows].sum() < _NOTED * comm[busy].sum():
        return
    sums = np.bincount(table["name"][rows], took[rows])
    names = [table.words["name"][code][:80] for code in np.argsort(-sums)[:3].tolist() if sums[code] > 0]
    text = (
        f"{len(rows)} kernels on a stream of communication have names that say nothing ({took[rows].sum() * 1e-6:.2f} "
        f"ms): they count as compute: {', '.join(names)}"
    )
    note("unnamed_kernels", text, count=len(rows), names=names)


def of_role(table: Table, role: int) -> Intervals:
    """Return when a device did work of this role."""
    rows = table["role"] == role
    return union(table["start"][rows], table["end"][rows])


def _possible(table: Table, note: Note) -> Table:
    """Drop and report records that cannot be true; shorten kernels that contain a later one of their stream."""
    duration, launch = table["duration"], table["launch_start"]
    reasons = {
        "no_start": table["start"] == UNKNOWN,
        "no_duration": duration == UNKNOWN,
        "negative_duration": (duration < 0) & (duration != UNKNOWN),
        "too_long": duration > MAX_DURATION,
        "precedes_launch": (launch != UNKNOWN) & (table["start"] < launch - CLOCK_NOISE),
    }
    bad = np.logical_or.reduce(list(reasons.values()))
    if bad.any():
        counts = {reason: int(mask.sum()) for reason, mask in reasons.items() if mask.any()}
        words = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in counts.items())
        note("impossible_record", f"{int(bad.sum())} records left out: {words}", count=int(bad.sum()), reasons=counts)
    early = (launch != UNKNOWN) & (table["start"] < launch) & ~bad
    if early.any():
        worst = int((launch - table["start"])[early].max())
        note(
            "start_before_launch",
            f"{int(early.sum())} kernels seem to start up to {worst / 1000:.1f} us before their launch; kept",
            "info",
            count=int(early.sum()),
        )
    return _clip_swallowed(table.take(~bad), note)


def _clip_swallowed(table: Table, note: Note) -> Table:
    """End a kernel where a later one of its stream begins, if that one is not empty and would lie completely inside.

    Kernels of one graph launch run side by side under the same stream number, so they are left unchanged.
    """
    if not len(table):
        return table
    is_graph = table.where("launch_name", _GRAPH)
    kernel = (table["activity"] == KERNEL) & (table["duration"] > 0) & ~is_graph
    rows = np.flatnonzero(kernel)
    rows = rows[np.lexsort([-table["end"][rows], table["start"][rows], table["stream"][rows]])]
    start, end, stream = table["start"][rows], table["end"][rows].copy(), table["stream"][rows]
    swallowed = (stream[:-1] == stream[1:]) & (start[1:] > start[:-1]) & (end[1:] <= end[:-1])
    if not swallowed.any():
        return table
    end[:-1][swallowed] = start[1:][swallowed]
    clipped = table["end"].copy()
    clipped[rows] = end
    count = int(swallowed.sum())
    note(
        "overlong_record",
        f"{count} kernels contain a later kernel of their stream: ended where it begins",
        count=count,
    )
    return table.with_columns(end=clipped, duration=clipped - table["start"])
