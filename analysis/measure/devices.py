"""Measures processes that drive several devices: one row per rank and device, without the device of the rank itself.

A rank's own numbers are those of one device. Waits and transfers between the devices of a process are unknown, so the
parts of a step have communication as one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankscope.analysis.core.intervals import either, length, measure
from rankscope.analysis.core.units import mean_of, ms
from rankscope.analysis.rank.rank_data import DeviceWork, RankData


def rows(ranks: Sequence[RankData], analysed: Sequence[int]) -> list[dict[str, Any]]:
    """Return totals (ms) and the mean parts of the analysed steps (ms) of each further device."""
    return [
        {"rank": data.rank, "device": work.device, "records": work.records}
        | _totals(work)
        | {"step": _parts(work, data, analysed)}
        for data in ranks
        for work in data.others
    ]


def _totals(work: DeviceWork) -> dict[str, float | None]:
    busy = either(work.compute, work.comm, work.copies)
    span = work.span[1] - work.span[0]
    exposed = length(either(work.compute, work.comm)) - length(work.compute)
    return {
        "compute_ms": ms(length(work.compute)),
        "comm_ms": ms(length(work.comm)),
        "exposed_comm_ms": ms(exposed),
        "copy_ms": ms(length(work.copies)),
        "idle_ms": ms(span - length(busy)),
        "span_ms": ms(span),
    }


def _parts(work: DeviceWork, data: RankData, analysed: Sequence[int]) -> dict[str, float | None] | None:
    """Return the mean parts of the analysed steps by priority, as the breakdown of a rank; None without a step."""
    steps = work.steps.take(np.isin(work.steps["step"], analysed))
    if not len(steps):
        return None
    start, end = steps["start"], steps["end"]
    layers, levels = [], [np.zeros(len(steps), np.int64)]
    for layer in (work.compute, work.comm, work.copies, data.data_wait):
        layers.append(layer)
        levels.append(measure(either(*layers), start, end))
    levels.append(end - start)
    names = ("compute_ms", "exposed_comm_ms", "copy_ms", "data_stall_ms", "host_gap_ms")
    return {name: mean_of(after - before) for name, before, after in zip(names, levels, levels[1:], strict=False)}
