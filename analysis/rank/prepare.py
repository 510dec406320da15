"""Turns a rank's tables into `RankData`: rejects impossible records, classifies, assigns to steps, merges intervals."""

import re
from itertools import pairwise

import numpy as np

from rankscope.analysis.core.collective_kinds import (
    POINT_TO_POINT,
    UNKNOWN_KIND,
    collective_kind,
    is_host_collective,
    is_of_collective,
    payload_bytes,
)
from rankscope.analysis.core.intervals import length, union
from rankscope.analysis.core.name_patterns import begins
from rankscope.analysis.core.notices import Level, Notice
from rankscope.analysis.core.on_disk import mapped
from rankscope.analysis.core.record_kinds import COMMUNICATION, COMPUTE, COPY
from rankscope.analysis.core.sm_share import sm_time
from rankscope.analysis.core.table import UNKNOWN, Column, Table, encode
from rankscope.analysis.rank.activity import activity
from rankscope.analysis.rank.classify import innermost, with_scope
from rankscope.analysis.rank.device_model import model_of
from rankscope.analysis.rank.device_work import (
    MAX_DURATION,
    Note,
    covered_launches,
    device_tables,
    note_unnamed,
    of_role,
    other_devices,
)
from rankscope.analysis.rank.ranges import host_ranges, on_device
from rankscope.analysis.rank.rank_data import COMM_COLUMNS, NO_STEP, DeviceWork, RankData
from rankscope.analysis.rank.steps import LINKED, device_windows, host_steps, numbers_repeat, step_at, whole_window
from rankscope.analysis.read.rank_trace import RankTrace, Where, end_of
from rankscope.conf.contract import DATA_WAIT

_DATA_WAIT = begins(re.compile(rf"{DATA_WAIT}$|enumerate\((?:DataLoader|DataPipe)\)#"))
_MESSAGE = begins(re.compile(r"c10d::(?:send|recv)"))
_NOT_COMPUTE = begins(re.compile(r"ProfilerStep#|enumerate\(DataLoader\)"))

MOST_STEPS = 10_000  # of a trace; comparing each with all others takes minutes beyond
_NO_STEPS = {
    "kineto": "no ProfilerStep marks: numbers of the whole window only; call prof.step() once a step, or name an "
    "annotation with --steps-from",
    "nsys": "no NVTX range of a step: numbers of the whole window only; name yours with --steps-from",
}


def prepare(trace: RankTrace, where: Where | None = None) -> RankData:
    """Measure everything about one rank that needs no other rank. The rank's number must be known by now.

    `where` finds the Python function around a runtime call, if stacks were recorded.
    """
    notices = list(trace.notices)
    rank = trace.rank
    assert rank is not None  # `workers.prepare_rank` has set it

    def note(kind: str, message: str, level: Level = "warning", **details: object) -> None:
        file = trace.files[0]
        text = f"{file}: {message}"
        notices.append(Notice(kind=kind, level=level, rank=rank, file=file, message=text, details=details))

    steps = _steps(trace, note)
    launches = trace.launches.with_columns(end=end_of(trace.launches)).moved()
    mode = "device" if len(trace.device) else "cpu"
    waits = _data_waits(trace.host, steps, steps["thread"][0] if len(steps) else None)
    kernels, others, covered = _work(trace, launches, steps, waits, note)
    left_over = int((kernels["step"] == NO_STEP).sum()) if len(steps) else 0
    windows = device_windows(steps, kernels, covered, waits, mode)
    windows = windows.with_columns(sm_busy=sm_time(kernels, windows["start"], windows["end"]))
    stretch = None if len(steps) or not len(kernels) else _stretch(kernels, waits, launches, trace.windows)
    on_gpu = launches if mode == "device" else launches.take(np.zeros(len(launches), bool))
    counted = kernels if stretch is None else kernels.with_columns(step=_window_of(kernels["start"], trace.windows))
    waited = union(waits["start"], waits["end"])
    done, syncs = activity(windows if stretch is None else stretch, counted, on_gpu, trace.host, waited, where)
    on_host = host_ranges(trace.host)
    device = int(kernels["device"][0]) if mode == "device" and len(kernels) else None
    return RankData(
        rank=rank,
        files=trace.files,
        mode=mode,
        world_size=trace.world_size,
        backend=trace.backend,
        groups=trace.groups,
        descriptions=trace.descriptions | _descriptions(trace.host) | _descriptions(trace.device),
        host_id=trace.host_id,
        probes=trace.probes,
        complete=trace.complete,
        source=trace.source,
        sees_communication=trace.sees_communication,
        steps=windows,
        comms=_comms(kernels, trace.host),
        kernels=kernels,
        compute=mapped(of_role(kernels, COMPUTE)),
        copies=mapped(of_role(kernels, COPY)),
        data_wait=waited,
        activity=done,
        syncs=syncs,
        ranges=on_host,
        device_ranges=on_device(kernels, on_host) if mode == "device" else on_host,
        launches=launches,
        host=trace.host,
        span=(int(kernels["start"].min()), int(kernels["end"].max())) if len(kernels) else None,
        left_over=left_over,
        notices=notices,
        device=device,
        others=others,
        stretch=stretch,
        model=model_of(trace, device),
        pauses=sum(max(0, start - end) for (_, end), (start, _) in pairwise(trace.windows)),
    )


def _steps(trace: RankTrace, note: Note) -> Table:
    """Return the steps that the host marked, and report what is odd about them."""
    steps = host_steps(trace.host)
    begin_again = numbers_repeat(trace.host, steps)
    if len(steps) > MOST_STEPS:
        note("too_many_steps", f"{len(steps)} steps: only the first {MOST_STEPS} count; record fewer", count=len(steps))
        steps = steps.take(np.arange(MOST_STEPS))
    if not len(steps):
        note("no_steps", _NO_STEPS[trace.source])
    elif begin_again:
        first, last = int(steps["step"][0]), int(steps["step"][-1])
        note("steps_repeat", f"the numbers of its steps begin again: counted on, as {first} to {last}", "info")
    return steps


def _work(
    trace: RankTrace, launches: Table, steps: Table, waits: Table, note: Note
) -> tuple[Table, list[DeviceWork], tuple[Column, Column]]:
    """Return the work of the rank's device (without one: of its host), that of other devices, and `coverage`."""
    if not len(trace.device):
        nothing = np.zeros(len(steps), np.int64)
        return _host_work(trace, steps, note), [], (nothing, nothing)
    tables = device_tables(trace, launches, steps, note)
    covered = covered_launches(steps, tables, launches, note)
    _note_gloo(trace.host, note)
    note_unnamed(tables[0], note)
    return tables[0], other_devices(tables[1:], steps, covered, waits), covered


def _window_of(times: Column, windows: list[tuple[int, int]]) -> Column:
    """Return which of several windows each time is in: the last one that began before it."""
    starts = np.array([start for start, _ in windows[1:]], np.int64)
    return np.searchsorted(starts, times, "right")


def _stretch(kernels: Table, waits: Table, launches: Table, windows: list[tuple[int, int]]) -> Table:
    """Return each window of a trace without steps as one stretch."""
    known = launches.take(launches["start"] != UNKNOWN)
    rows = []
    of_kernel, of_call, of_wait = (_window_of(table["start"], windows) for table in (kernels, known, waits))
    for number in np.unique(of_kernel).tolist():
        work, calls, waited = (
            kernels.take(of_kernel == number),
            known.take(of_call == number),
            waits.take(of_wait == number),
        )
        times = np.concatenate([calls["start"], calls["end"], waited["start"], waited["end"], work["start"][:1]])
        row = whole_window(number, work, (int(times.min()), int(times.max())))
        rows.append(row.with_columns(data_wait=np.array([int((waited["end"] - waited["start"]).sum())])))
    table = Table.concat(rows)
    return table.with_columns(sm_busy=sm_time(kernels, table["start"], table["end"]))


def _note_gloo(host: Table, note: Note) -> None:
    """Report collectives that ran on the CPU of a rank with a device: they are in no number of the device."""
    rows = host.take(host.where("name", is_host_collective) & (host["duration"] > 0), "start", "duration")
    if len(rows):
        took = length(union(rows["start"], end_of(rows))) * 1e-6
        text = f"{len(rows)} collectives ran on the CPU ({took:.2f} ms), beside the device: not in communication"
        note("cpu_collectives_beside_device", text, count=len(rows), ms=round(took, 6))


# --- CPU records ---------------------------------------------------------------------------------------------


def _host_work(trace: RankTrace, steps: Table, note: object) -> Table:
    """Return the work of a rank without GPU: a collective's own record stands for its kernel, operators are compute."""
    assert callable(note)
    host = trace.host
    known = (host["start"] != UNKNOWN) & (host["duration"] >= 0) & (host["duration"] <= MAX_DURATION)
    words = host.words["name"]
    is_comm = host.where("name", is_host_collective)
    excluded = host.where("name", lambda word: is_of_collective(word) or _NOT_COMPUTE(word))
    comm = known & is_comm
    # Operators on a thread of the backend belong to its collectives. Sends are recorded on the thread of the steps.
    own = np.setdiff1d(host["thread"][comm], steps["thread"])
    compute = known & ~excluded & (host["annotation"] == 0) & ~np.isin(host["thread"], own)
    if comm.any():
        backend = trace.backend or words[int(host["name"][comm][0])].partition(":")[0]
        text = f"{backend} moves data on the CPU, and its times include those in its queue: transfers are rough"
        note("cpu_collectives", text, backend=backend)
    rows = np.flatnonzero(comm | compute)
    table = host.take(rows).with_columns(role=np.where(comm[rows], COMMUNICATION, COMPUTE))
    kinds = [collective_kind(w) if c else None for w, c in zip(table.texts("name"), comm[rows], strict=True)]
    codes, kind_words = encode(kinds)
    blank = np.full(len(table), UNKNOWN, np.int64)
    fields = {"activity": blank * 0, "device": blank * 0 - 1, "stream": table["thread"].astype(np.int64)}
    fields |= {"correlation": blank, "bytes": blank, "occupancy": blank, "sm_share": blank, "launch_start": blank}
    fields |= {"start": _message_starts(table, host, codes, kind_words), "end": end_of(table), "kind": codes}
    fields |= {"described": (table["collective"] >= 0).astype(np.int64)}
    table = Table({**table.columns, **fields}, {**table.words, "kind": kind_words}).sort("start")
    return table.with_columns(step=step_at(table["start"], steps))


def _message_starts(table: Table, host: Table, kind: Column, words: list[str]) -> Column:
    """Return the starts, those of sends and receives with torch's own call around them.

    gloo opens its record when the call returns. By then the message may have gone, or the call may have waited long.
    """
    messages = np.flatnonzero(np.isin(kind, [code for code, word in enumerate(words) if word in POINT_TO_POINT]))
    calls = np.flatnonzero(host.where("name", _MESSAGE) & (host["start"] != UNKNOWN))
    start = table["start"].copy()
    if len(messages) and len(calls):
        around = innermost(start[messages], table["thread"][messages], host, calls)
        known = around >= 0
        start[messages[known]] = host["start"][around[known]]
    return start


# --- for both ------------------------------------------------------------------------------------------------


def _comms(kernels: Table, host: Table) -> Table:
    """Return the communication records in the order of the calls, which is the same on all ranks of a group."""
    table = with_scope(_joined(kernels.take(kernels["role"] == COMMUNICATION)), host)
    table = table.take(np.lexsort([table["start"], _call_order(table)]))
    payload = _payload(table)
    return Table(
        {name: np.asarray(table[name]) if name != "bytes" else payload for name in COMM_COLUMNS},
        {name: words for name, words in table.words.items() if name in COMM_COLUMNS},
    )


def _joined(table: Table) -> Table:
    """Join the records that one collective launched (a copy for each peer) to one, from the first start on."""
    if "inside" not in table.columns or not (table["inside"] >= 0).any():
        return table
    _, first, group = np.unique(
        np.where(table["inside"] >= 0, table["inside"], -2 - np.arange(len(table))),
        return_index=True,
        return_inverse=True,
    )
    start, end = table["start"][first].copy(), table["end"][first].copy()
    np.minimum.at(start, group.ravel(), table["start"])
    np.maximum.at(end, group.ravel(), table["end"])
    return table.take(first).with_columns(start=start, end=end)


def _descriptions(table: Table) -> dict[str, str]:
    """Return what the records of collectives call their process groups."""
    rows = np.flatnonzero((table["group"] >= 0) & (table["group_desc"] >= 0))
    pairs = set(zip(table["group"][rows].tolist(), table["group_desc"][rows].tolist(), strict=True))
    return {table.words["group"][group]: table.words["group_desc"][text] for group, text in sorted(pairs)}


def _call_order(table: Table) -> Column:
    """Return when each record was launched. A record without launch takes the time of its predecessor on its stream.

    Records before the first launched one come first. If most records have no launch, their start gives the order.
    """
    linked = table["launch_start"] != UNKNOWN
    if not len(table) or linked.mean() < LINKED:
        return table["start"]
    order = table["launch_start"].copy()
    for stream in np.unique(table["stream"][~linked]).tolist():
        rows = np.flatnonzero(table["stream"] == stream)  # in order of start
        previous = np.maximum.accumulate(np.where(linked[rows], np.arange(len(rows)), -1))
        order[rows] = np.where(previous >= 0, order[rows[np.maximum(previous, 0)]], UNKNOWN)
    return order


def _payload(table: Table) -> Column:
    """Return the payload (bytes) from element count and type; if those are unknown, the size that the reader gave."""
    rows = zip(table.texts("kind"), table.texts("dtype"), table["in_nelems"], table["out_nelems"], strict=True)
    sizes = [
        payload_bytes(kind or UNKNOWN_KIND, dtype, None if i == UNKNOWN else int(i), None if o == UNKNOWN else int(o))
        for kind, dtype, i, o in rows
    ]
    return np.array([own if size is None else size for size, own in zip(sizes, table["bytes"], strict=True)], np.int64)


def _data_waits(host: Table, steps: Table, main: int | None) -> Table:
    """Return the intervals in which the training thread waited for a batch from the data loader."""
    named = host.where("name", _DATA_WAIT)
    chosen = named & (host["duration"] > 0) & (host["start"] != UNKNOWN)
    if main is not None:
        chosen &= host["thread"] == main
    table = host.take(chosen, "start", "duration")
    merged = union(table["start"], end_of(table))
    return Table({"start": merged[0], "end": merged[1], "step": step_at(merged[0], steps)})
