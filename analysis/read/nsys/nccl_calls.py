"""Finds the NCCL call that launched each communication kernel of an export, and adds what the call says about it."""

import msgspec
import numpy as np

from rankscope.analysis.core.collective_kinds import collective_kind, is_communication
from rankscope.analysis.core.record_kinds import KERNEL
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.read.rank_trace import launch_of


class NcclCalls(msgspec.Struct, kw_only=True):
    """The NCCL collective calls of one process in order of time."""

    start: Column
    end: Column
    thread: Column
    name: Column
    kinds: list[str]
    group: Column
    size: Column
    words: list[str]  # names of kernels


def describe(device: Table, launches: Table, calls: NcclCalls) -> Table:
    """Give each communication kernel the NCCL call around its launch. Sizes are the call's own message size.

    A kernel launched at the end of a group (ncclGroupEnd) is not inside any call. If there are as many calls as kernels
    and their kinds agree in order, they are paired by order.
    """
    is_comm = np.array([is_communication(word) for word in calls.words] + [False])
    rows = np.flatnonzero((device["activity"] == KERNEL) & is_comm[device["name"]])
    if not len(rows) or not len(calls.start):
        return device
    time, found = _around(device.take(rows), launches, calls)
    if (found < 0).any() and len(rows) == len(calls.start):
        by_time = np.argsort(np.where(time == UNKNOWN, device["start"][rows], time), kind="stable")
        kinds = [collective_kind(calls.words[name]) for name in device["name"][rows][by_time].tolist()]
        if kinds == calls.kinds:
            found[by_time] = np.arange(len(rows))
    rows, found = rows[found >= 0], found[found >= 0]
    columns = {name: device[name].copy() for name in ("collective", "group", "bytes")}
    columns["collective"][rows] = calls.name[found]
    columns["group"][rows] = calls.group[found]
    columns["bytes"][rows] = calls.size[found]
    return device.with_columns(**columns)


def _around(kernels: Table, launches: Table, calls: NcclCalls) -> tuple[Column, Column]:
    """Return for each kernel (its launch time or `UNKNOWN`, the call around that time or -1)."""
    launch = launch_of(kernels["correlation"], launches)
    if not len(launches):
        return np.full(len(kernels), UNKNOWN), launch
    time = np.where(launch >= 0, launches["start"][launch], UNKNOWN)
    call = np.searchsorted(calls.start, time, "right") - 1
    inside = (launch >= 0) & (call >= 0) & (time < calls.end[call])
    inside &= launches["thread"][launch] == calls.thread[call]
    return time, np.where(inside, call, -1)
