"""Completes a trace that has only device activities (`profile=light`) from what the rank itself recorded.

Input: a `RankTrace` without operators, and the rank's steps.parquet and rank.json next to it. Output: the trace with
the steps, the waits for batches, and the sizes of DDP's buckets, so that all later stages use the same code.
"""

from pathlib import Path

import msgspec
import numpy as np

from rankscope.analysis.core.collective_kinds import collective_kind, is_communication
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.rank.rank_data import NO_STEP
from rankscope.analysis.rank.steps import marks_steps, step_number
from rankscope.analysis.read.pass_steps import has_steps, read_steps
from rankscope.analysis.read.rank_info import read_rank_info
from rankscope.analysis.read.rank_trace import CODED, HOST_COLUMNS, RankTrace
from rankscope.conf.contract import DATA_WAIT, StepColumn, StepRow
from rankscope.conf.run_dir import RankDir

_NEEDED: list[StepColumn] = ["step", "phase", "start_ns", "host_ns", "data_wait_ns"]


def corrected(trace: RankTrace, path: Path) -> RankTrace:
    """Return the trace with the steps that the rank's own records have; unchanged if there are no records."""
    rank_dir = RankDir(path.parent)
    return _without_open_steps(_completed(trace, rank_dir), rank_dir) if has_steps(rank_dir) else trace


def _completed(trace: RankTrace, rank_dir: RankDir) -> RankTrace:
    """Return the trace with steps from the rank's own records; unchanged if it has steps."""
    if trace.source != "kineto" or not len(trace.launches) or marks_steps(trace.host):
        return trace
    try:
        every: list[StepRow] = read_steps(rank_dir).select(_NEEDED).to_pylist()
    except (OSError, ValueError):
        return trace
    rows = [row for row in every if row["phase"] == "active" and row["host_ns"] and None not in row.values()]
    if not rows:
        return trace
    return msgspec.structs.replace(
        trace, host=_host(trace, rows), device=_sized(trace.device, _buckets(rank_dir), rows)
    )


def _without_open_steps(trace: RankTrace, rank_dir: RankDir) -> RankTrace:
    """Return the trace without steps that the rank began but did not end: it failed, or its script was over."""
    try:
        rows: list[StepRow] = read_steps(rank_dir).select(["step", "host_ns"]).to_pylist()
    except (OSError, ValueError):
        return trace
    ended = {row["step"] for row in rows if row["host_ns"] is not None}
    numbers = ended | {NO_STEP}
    rows_open = trace.host.where("name", lambda word: step_number(word) not in numbers)
    if not ended or not rows_open.any():
        return trace
    return msgspec.structs.replace(trace, host=trace.host.take(~rows_open))


def _host(trace: RankTrace, rows: list[StepRow]) -> Table:
    """Return the steps and their data waits as annotations, on the thread of the first launch."""
    spans = [(f"ProfilerStep#{row['step']}", row["start_ns"], row["host_ns"]) for row in rows]
    spans += [(DATA_WAIT, row["start_ns"], row["data_wait_ns"]) for row in rows if row["data_wait_ns"]]
    first = rows[0]["start_ns"]
    inside = np.flatnonzero(trace.launches["start"] >= first)
    thread = trace.launches["thread"][inside[np.argmin(trace.launches["start"][inside])] if len(inside) else 0]
    count = len(spans)
    columns: dict[str, Column] = {
        name: np.full(count, -1, np.int32) if name in CODED else np.full(count, UNKNOWN) for name in HOST_COLUMNS
    }
    columns["start"] = np.array([start for _, start, _ in spans], np.int64)
    columns["duration"] = np.array([took for _, _, took in spans], np.int64)
    columns["name"] = np.arange(count, dtype=np.int32)
    columns["thread"] = np.full(count, thread, np.int32)
    columns["annotation"] = np.ones(count, np.int64)
    words = {name: trace.device.words.get(name, []) for name in CODED if name in HOST_COLUMNS}
    words |= {"name": [name for name, _, _ in spans], "thread": trace.launches.words["thread"]}
    return Table(columns, words)


def _buckets(rank_dir: RankDir) -> list[int]:
    try:
        found: list[int] = read_rank_info(rank_dir).get("bucket_bytes", [])
    except (OSError, ValueError):
        return []
    return found


def _sized(device: Table, buckets: list[int], rows: list[StepRow]) -> Table:
    """Give a step's all-reduces the sizes of DDP's buckets if their numbers match; otherwise leave them unknown."""
    if not buckets:
        return device
    kinds = [is_communication(word) and collective_kind(word) == "allreduce" for word in device.words["name"]]
    chosen = np.flatnonzero(np.array([*kinds, False])[device["name"]] & (device["bytes"] == UNKNOWN))
    chosen = chosen[np.argsort(device["start"][chosen], kind="stable")]
    if len(chosen) != len(buckets) * len(rows):
        return device
    sizes = device["bytes"].copy()
    sizes[chosen] = np.tile(buckets, len(rows))
    return device.with_columns(bytes=sizes)
