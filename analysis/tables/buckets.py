"""The table of DDP's buckets as the device saw them, in the order in which they were ready.

It helps to choose `ddp.bucket_cap_mb` by eye: the first buckets should be ready early and hidden; the last one, which
nothing can hide, should be small.
"""

import numpy as np

from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.analysis.measure.recording import Recording
from rankscope.conf.contract import bus_factor


def buckets(recording: Recording) -> Table:
    """Return one row per all-reduce, step and rank; `bucket` counts them in each step, from 0."""
    calls = recording.calls
    kind = calls.where("kind", lambda word: word == "allreduce")
    chosen = kind & np.isin(calls["step"], recording.steps_analysed) & (calls["group_size"] != 1)
    calls = calls.take(chosen).sort("rank", "step", "start_ns")
    table = recording.step_table
    begins = dict(zip(zip(table["rank"].tolist(), table["step"].tolist(), strict=True), table["start_ns"], strict=True))
    keys = list(zip(calls["rank"].tolist(), calls["step"].tolist(), strict=True))
    bucket = np.zeros(len(calls), np.int64)
    for row in range(1, len(keys)):
        bucket[row] = bucket[row - 1] + 1 if keys[row] == keys[row - 1] else 0
    start = np.array([begins.get(key, UNKNOWN) for key in keys], np.int64)
    ready = np.where(start == UNKNOWN, UNKNOWN, calls["start_ns"] - start)
    size, took = calls["bytes"], calls["transfer_clockfree_ns"]
    ranks = np.maximum(calls["group_size"], 1)
    factor = np.array([bus_factor("allreduce", int(count)) for count in ranks.tolist()])
    known = (size > 0) & (took > 0)
    busbw = np.where(known, size / np.maximum(took, 1) * factor, np.nan)
    best = [
        recording.ceilings.time_us("allreduce", count, group) if fine and recording.ceilings else None
        for count, group, fine in zip(size.tolist(), ranks.tolist(), known.tolist(), strict=True)
    ]
    of_ceiling = [np.nan if us is None else us * 1000 / max(1, ns) for us, ns in zip(best, took.tolist(), strict=True)]
    return Table(
        {
            "step": calls["step"],
            "rank": calls["rank"],
            "bucket": bucket,
            "bytes": size,
            "ready_ns": ready,
            "wait_ns": calls["wait_ns"],
            "transfer_ns": calls["transfer_ns"],
            "transfer_clockfree_ns": took,
            "exposed_ns": calls["exposed_ns"],
            "busbw_GBs": busbw,
            "of_ceiling": np.array(of_ceiling, float),
        }
    )
