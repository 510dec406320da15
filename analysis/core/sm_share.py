"""Estimates how much of a GPU's SMs the kernels use from their launches. It is not measured, so it is an upper bound.

A kernel's share of the SMs = min(1, its thread blocks / SMs of the device). torch.profiler writes "blocks per SM",
Nsight Systems the grid and the number of SMs. A kernel of one block keeps one SM of 132 busy, however long it runs. The
definition is that of TensorBoard's plugin for PyTorch ("Est. SM Efficiency"). As there, the shares of overlapping
kernels add up, to at most 1. Input: device records. Output: shares of kernels, and SM time of windows.
"""

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from rankscope.analysis.core import at_once
from rankscope.analysis.core.record_kinds import KERNEL
from rankscope.analysis.core.table import UNKNOWN, Column, Table

_MOST_SHARES = 1 << 14  # different ones of a trace are few
WHOLE = 10**12  # a share of 1; fine enough to represent a trace's decimals exactly


def shares(values: Iterable[Any]) -> Column:
    """Turn blocks per SM (numbers or text) into shares of the SMs, `WHOLE` = all; `UNKNOWN` if it is not a number."""
    found = list(values)
    try:
        return np.array([_share(value) for value in found], np.int64)
    except TypeError:  # a list or an object where a number belongs
        return np.array([_share(value if isinstance(value, int | float | str) else None) for value in found], np.int64)


@lru_cache(_MOST_SHARES, typed=True)
def _share(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return UNKNOWN
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return UNKNOWN
    return UNKNOWN if math.isnan(number) else round(min(max(number, 0.0), 1.0) * WHOLE)


def of_grids(blocks: Column, sms: int | None) -> Column:
    """Return the share of each kernel from its number of thread blocks (0: unknown), on a device of `sms` SMs."""
    if not sms:
        return np.full(len(blocks), UNKNOWN)
    return np.where(blocks > 0, np.rint(np.minimum(blocks / sms, 1) * WHOLE), UNKNOWN).astype(np.int64)


def mean_by_time(share: Column, took: Column, index: Column, count: int) -> Column:
    """Return the mean share (0 to 1) of the kernels of each index, weighted by duration; NaN if none is known."""
    known = share > 0  # a running kernel is on some SM, so 0 means that the profiler could not tell
    weight = np.bincount(index, weights=took * known, minlength=count)
    whole = np.bincount(index, weights=took * known * (np.maximum(share, 0) / WHOLE), minlength=count)
    return np.where(weight > 0, whole / np.maximum(weight, 1), np.nan)


def sm_time(kernels: Table, start: Column, end: Column) -> Column:
    """Return for each window how long (ns) the SMs would be busy if each kernel's blocks were spread over them.

    This is the integral of min(1, sum of the shares of running kernels) over [start, end). It is `UNKNOWN` if the share
    of a kernel in the window is unknown. Divided by the length of the window it is the SM efficiency.
    """
    wanted = (kernels["activity"] == KERNEL) & (kernels["end"] > kernels["start"])
    work = kernels.take(wanted, "start", "end", "sm_share").moved()
    known = work["sm_share"] > 0
    until = _integral(work.take(known), np.concatenate([end, start]))
    found = np.rint(until[: len(end)] - until[len(end) :]).astype(np.int64)
    lost = work.take(~known)
    # Kernels that began before the window's end, minus those that ended before its start.
    begun = np.searchsorted(np.sort(lost["start"], kind="stable"), end, "left")
    over = np.searchsorted(np.sort(lost["end"], kind="stable"), start, "right")
    return np.where(begun > over, UNKNOWN, found)


def _integral(work: Table, at: Column) -> Column:
    """Return the integral of min(1, sum of shares) from the first kernel to each time (ns)."""
    result = np.zeros(len(at))
    if not len(work):
        return result
    first = work["start"].min()
    last, level, done = first, 0, 0.0  # of the pieces before: last change, sum after it, integral
    for times, change in _changes(work):
        times = np.append(last, times)
        levels = np.cumsum(np.append(level, change))
        shares = np.minimum(levels[:-1], WHOLE) / WHOLE  # from each time to the next
        sums = np.cumsum(np.append(done, shares * np.diff(times)))
        beyond = at > last
        result[beyond] = np.interp(at[beyond] - first, times - first, sums)
        last, level, done = times[-1], levels[-1], sums[-1]
    return result


def _changes(work: Table) -> Iterator[tuple[Column, Column]]:
    """Yield when kernels start or end, in order, and by how much the sum of the shares changes then.

    A trace has millions of kernels, so they come in pieces. Changes at the same time are in the same piece.
    """
    by_start, by_end = (np.argsort(work[name], kind="stable") for name in ("start", "end"))
    starts, started = work["start"][by_start], work["sm_share"][by_start]
    ends, ended = work["end"][by_end], -work["sm_share"][by_end]
    del by_start, by_end
    limits = np.unique(starts[at_once.ROWS :: at_once.ROWS])
    borders = (np.concatenate([[0], np.searchsorted(times, limits), [len(work)]]) for times in (starts, ends))
    for own, others in zip(*map(pairwise, borders), strict=True):
        a, b = slice(*own), slice(*others)
        times = np.concatenate([starts[a], ends[b]])
        order = np.argsort(times, kind="stable")
        yield times[order], np.concatenate([started[a], ended[b]])[order]
