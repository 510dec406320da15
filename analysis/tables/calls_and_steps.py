"""The tables of calls, steps, segments and kernels. docs/tables.md lists columns and units, stable within a schema."""

import numpy as np

from rankscope.analysis.align.groups import group_name
from rankscope.analysis.core.record_kinds import COMMUNICATION, COMPUTE, COPY
from rankscope.analysis.core.table import UNKNOWN, Table, encode
from rankscope.analysis.measure.recording import Recording

_ROLES = {COMPUTE: "compute", COMMUNICATION: "communication", COPY: "copy"}


def collectives(recording: Recording) -> Table:
    """Return one row per call and rank."""
    calls = recording.calls
    codes, words = encode([group_name(word) for word in calls.words["group_id"]])
    group = codes[calls["group_id"]] if len(codes) else calls["group_id"]
    size = np.where(calls["group_size"] == UNKNOWN, np.where(calls["members"] > 0, calls["members"], UNKNOWN), 0)
    return Table(
        {
            "group": group,
            "kind": calls["kind"],
            "call": np.where(calls["call"] < 0, UNKNOWN, calls["call"]),
            "ordinal": np.where(calls["ordinal"] < 0, UNKNOWN, calls["ordinal"]),
            "seq": calls["seq"],
            "step": np.where(calls["step"] < 0, UNKNOWN, calls["step"]),
            "rank": calls["rank"],
            "bytes": calls["bytes"],
            "dtype": calls["dtype"],
            "group_size": np.where(calls["group_size"] == UNKNOWN, size, calls["group_size"]),
            "start_ns": calls["start_ns"],
            "end_ns": calls["end_ns"],
            "wait_ns": calls["wait_ns"],
            "transfer_ns": calls["transfer_ns"],
            "transfer_clockfree_ns": calls["transfer_clockfree_ns"],
            "exposed_ns": calls["exposed_ns"],
            "lateness_ns": calls["lateness_ns"],
            "matched": calls["matched"],
        },
        {"group": words, "kind": calls.words["kind"], "dtype": calls.words["dtype"]},
    )


def steps(recording: Recording) -> Table:
    """Return one row per step and rank, with the six parts, which sum to `step_ns`."""
    table = recording.step_table
    known = (table["sm_busy_ns"] != UNKNOWN) & (table["step_ns"] > 0)
    sm_efficiency = np.where(known, table["sm_busy_ns"] / np.maximum(table["step_ns"], 1), np.nan)
    late = recording.late_table
    of_late = zip(late["step"].tolist(), late["rank"].tolist(), strict=True)
    lateness = dict(zip(of_late, late["lateness_ns"], strict=True))
    keys = zip(table["step"].tolist(), table["rank"].tolist(), strict=True)
    return table.with_columns(
        sm_efficiency=sm_efficiency,
        lateness_ns=np.array([lateness.get(key, UNKNOWN) for key in keys], np.int64),
        analysed=np.isin(table["step"], recording.steps_analysed),
        judged=np.isin(table["step"], recording.steps_judged),
    )


def segments(recording: Recording) -> Table:
    """Return one row per step and rank: its largest lateness, and the call in which it occurred."""
    late, calls = recording.late_table, recording.calls
    rows = late["row"]
    return Table(
        {
            "step": late["step"],
            "rank": late["rank"],
            "lateness_ns": late["lateness_ns"],
            "call": calls["call"][rows],
            "kind": calls["kind"][rows],
            "bytes": calls["bytes"][rows],
            "start_ns": calls["start_ns"][rows],
        },
        {"kind": calls.words["kind"]},
    )


def kernels(recording: Recording) -> Table:
    """Return every valid record of all ranks: kernels, copies and memsets (on a CPU: operators and collectives)."""
    parts = []
    for data in recording.ranks:
        table = data.kernels
        role = np.array([_CODE[value] for value in table["role"].tolist()], np.int32)
        columns = {name: table[name] for name in ("name", "kind", "device", "stream", "correlation", "bytes")}
        columns |= {
            "rank": np.full(len(table), data.rank),
            "step": np.where(table["step"] < 0, UNKNOWN, table["step"]),
            "role": role,
            "start_ns": recording.alignment.to_common(data.rank, table["start"]),
            "end_ns": recording.alignment.to_common(data.rank, table["end"]),
            "launch_ns": _launch(recording, data.rank, table),
        }
        words = {"name": table.words["name"], "kind": table.words["kind"], "role": list(_ROLES.values())}
        parts.append(Table(columns, words))
    return Table.concat(parts)


_CODE = {role: index for index, role in enumerate(_ROLES)}


def _launch(recording: Recording, rank: int, table: Table) -> np.ndarray:
    known = table["launch_start"] != UNKNOWN
    times = np.where(known, table["launch_start"], 0)
    return np.where(known, recording.alignment.to_common(rank, times), UNKNOWN)
