"""Breaks each step of each rank down into six parts, which sum to the step exactly.

Input: one rank's merged intervals and windows, and when each of its collectives was ready. Output: a table with a row
per step. The parts by priority: compute, exposed transfer, exposed wait, copy, data stall, host gap.
"""

import numpy as np

from rankscope.analysis.align.clock import Alignment
from rankscope.analysis.core import at_once
from rankscope.analysis.core.intervals import EMPTY, Intervals, either, length, measure, union
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.rank.rank_data import RankData

PARTS = ("compute", "exposed_transfer", "exposed_wait", "copy", "data_stall", "host_gap")


def measure_steps(data: RankData, calls: Table, alignment: Alignment) -> Table:
    """Return one row per step of this rank; `calls` are its rows of the collectives' table (with `ready_ns`)."""
    start, end = data.steps["start"], data.steps["end"]
    known = calls["ready_ns"] != UNKNOWN
    transfer, wait, comm = communication_sets(calls)

    levels = _levels([data.compute, transfer, wait, comm, data.copies, data.data_wait], start, end)
    compute, with_transfer, with_wait, with_comm, with_copy, with_stall = levels
    unsplit = with_comm > with_wait  # communication without a partner: it cannot be split into wait and transfer
    comm_ns, transfer_ns = measure(comm, start, end), measure(transfer, start, end)
    waits = measure(wait, start, end)
    split_unknown = unsplit | _touched_by_unknown(calls, ~known, start, end)
    return Table(
        {
            "step": data.steps["step"],
            "rank": np.full(len(start), data.rank),
            "start_ns": alignment.to_common(data.rank, start),
            "end_ns": alignment.to_common(data.rank, end),
            "host_start_ns": alignment.to_common(data.rank, data.steps["host_start"]),
            "host_end_ns": alignment.to_common(data.rank, data.steps["host_end"]),
            "step_ns": end - start,
            "compute_ns": compute,
            "exposed_transfer_ns": np.where(split_unknown, UNKNOWN, with_transfer - compute),
            "exposed_wait_ns": np.where(split_unknown, UNKNOWN, with_wait - with_transfer),
            "copy_ns": with_copy - with_comm,
            "data_stall_ns": with_stall - with_copy,
            "host_gap_ns": (end - start) - with_stall,
            "comm_ns": comm_ns,
            "exposed_comm_ns": with_comm - compute,
            "wait_ns": np.where(split_unknown, UNKNOWN, waits),
            "transfer_ns": np.where(split_unknown, UNKNOWN, transfer_ns),
            "copies_ns": measure(data.copies, start, end),
            "busy_ns": with_copy,
            "sm_busy_ns": data.steps["sm_busy"],
            "data_wait_ns": data.steps["data_wait"],
            "records": data.steps["records"],
            "launches": data.steps["launches"],
            "covered": data.steps["covered"],
            "complete": data.steps["complete"],
        }
    )


def _levels(layers: list[Intervals], start: Column, end: Column) -> list[Column]:
    """Return for each layer how much of each step (ns) it and the layers before it cover.

    A few steps are taken at a time if the layers have millions of intervals.
    """
    count = max(1, len(start) * at_once.ROWS // max(1, sum(layer.shape[1] for layer in layers)))
    levels: list[list[Column]] = [[np.zeros(0, np.int64)] for _ in layers]
    for low in range(0, len(start), count):
        begins, ends = start[low : low + count], end[low : low + count]
        first, last = min(begins.min(), ends.min()), max(begins.max(), ends.max())
        covered = EMPTY
        for layer, found in zip(layers, levels, strict=True):
            reaching = layer[:, np.searchsorted(layer[1], first) : np.searchsorted(layer[0], last)]
            if reaching.shape[1] or not covered.shape[1]:
                covered = either(covered, reaching)
                level = measure(covered, begins, ends)
            found.append(level)
    return [np.concatenate(found) for found in levels]


def communication_sets(calls: Table) -> tuple[Intervals, Intervals, Intervals]:
    """Return one rank's transfers, its waits, and all its communication as sets, on its own clock.

    Records without a partner are only in the third set, because they cannot be split into wait and transfer.
    """
    ready, known = _ready_on_own_clock(calls), calls["ready_ns"] != UNKNOWN
    transfer = union(ready[known], calls["end"][known])
    wait = union(calls["start"][known], ready[known])
    return transfer, wait, union(calls["start"], calls["end"])


def _ready_on_own_clock(calls: Table) -> Column:
    """Return when the last rank arrived, on this rank's own clock: its start plus its wait, but within the record.

    So what a rank's own records say, such as its exposed communication, never depends on other ranks.
    """
    wait = np.where(calls["ready_ns"] == UNKNOWN, 0, calls["wait_ns"])
    return np.asarray(np.clip(calls["start"] + wait, calls["start"], np.maximum(calls["start"], calls["end"])))


def _touched_by_unknown(calls: Table, unknown: Column, start: Column, end: Column) -> Column:
    """Return a mask of the steps in which a collective with unknown wait ran, even if it was hidden."""
    spans = union(calls["start"][unknown], calls["end"][unknown])
    return measure(spans, start, end) > 0


def exposed_of_each(data: RankData, calls: Table) -> Column:
    """Return for each communication record of this rank how long it ran without a compute kernel (ns)."""
    covered = measure(data.compute, calls["start"], calls["end"])
    return (calls["end"] - calls["start"]) - covered


def totals(data: RankData) -> dict[str, float | int | None]:
    """Return the lengths of unions (us) over a rank's complete trace, as the validation cases define them."""
    comm = union(data.comms["start"], data.comms["end"])
    every = either(data.compute, comm, data.copies)
    span = int(every[1][-1] - every[0][0]) if every.shape[1] else None
    if data.span is not None:  # a record of zero length still marks an end of the span
        span = data.span[1] - data.span[0] - data.pauses
    compute, communication, busy = length(data.compute), length(comm), length(every)
    exposed = length(either(data.compute, comm)) - compute
    return {
        "rank": data.rank,
        "compute_us": compute / 1000,
        "comm_us": communication / 1000,
        "overlap_us": (communication - exposed) / 1000,
        "exposed_comm_us": exposed / 1000,
        "overlap_ratio": (communication - exposed) / communication if communication else None,
        "memory_us": length(data.copies) / 1000,
        "span_us": span / 1000 if span is not None else None,
        "busy_us": busy / 1000,
        "idle_us": (span - busy) / 1000 if span is not None else None,
    }
