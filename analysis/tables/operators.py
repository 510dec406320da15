"""Tables of where the time of the device and the host goes: by operator, by module, by kernel.

An operator's self time excludes what is nested in it on its thread. The device time of a kernel belongs to the
innermost operator around its launch, and to every operator and range around that one. Times are sums over the analysed
steps of a rank. Shares are of the sum of its steps.
"""

from typing import Any

import numpy as np

from rankscope.analysis.core.kernel_families import is_matmul, uses_tensor_cores
from rankscope.analysis.core.record_kinds import COMMUNICATION, COMPUTE, COPY
from rankscope.analysis.core.sm_share import mean_by_time
from rankscope.analysis.core.table import UNKNOWN, Column, Table, encode
from rankscope.analysis.measure.recording import Recording
from rankscope.analysis.rank.rank_data import RankData
from rankscope.analysis.rank.steps import step_at
from rankscope.analysis.read.rank_trace import end_of
from rankscope.analysis.read.run_settings import rank_infos
from rankscope.conf.contract import MODULE_PREFIX

# Tables by name hold at most this many ranks, including the late one, because the ranks of a job do the same.
RANKS = 8
_ROLES = {COMPUTE: "compute", COMMUNICATION: "communication", COPY: "copy"}
_NO_STEP = "ProfilerStep#"
_CLASSED, _OF_KERNELS = ("name", "class"), ("rank", "calls", "total_ns", "mean_ns")
_SHARES = ("share", "occupancy", "sm_efficiency")


def operators(recording: Recording) -> Table:
    """Return one row per operator and rank, the longest on the device first (on a CPU: on the host)."""
    return _by_name(recording, modules=False)


def modules(recording: Recording) -> Table:
    """Return one row per named module, direction and rank."""
    table = _by_name(recording, modules=True)
    infos = [] if recording.run_dir is None else rank_infos(recording.run_dir, (recording.run_dir.detailed.name,))
    kept: dict[tuple[Any, str | None], int] = {
        (info.get("rank"), MODULE_PREFIX + name): size for info in infos for name, size in _memory(info).items()
    }
    keys = zip(table["rank"].tolist(), table.texts("name"), strict=True)
    return table.with_columns(memory_bytes=np.array([kept.get(key, UNKNOWN) for key in keys], np.int64))


def _memory(info: dict[str, Any]) -> dict[str, int]:
    found = info.get("module_memory_bytes")
    return found if isinstance(found, dict) else {}


def kernels_by_name(recording: Recording) -> Table:
    """Return one row per name of a kernel or copy and rank, the longest first; no rows on a CPU."""
    parts = []
    for data in _chosen(recording):
        if data.mode != "device":
            continue
        table = data.kernels.take(np.isin(data.kernels["step"], recording.steps_analysed))
        took = table["end"] - table["start"]
        names, index = np.unique(table["name"], return_inverse=True)
        total, calls = _summed(index, took, len(names)), np.bincount(index, minlength=len(names))
        first = np.unique(table["name"], return_index=True)[1]
        words = [table.words["name"][code] for code in names.tolist()]
        occupancy = _occupancy(table, index, took, len(names))
        sm_efficiency = mean_by_time(table["sm_share"], took, index, len(names))
        classes = [_class(word, int(table["role"][row])) for word, row in zip(words, first.tolist(), strict=True)]
        codes, kinds = encode(classes)
        own = Table(
            {
                "rank": np.full(len(names), data.rank),
                "name": np.arange(len(names), dtype=np.int32),
                "class": codes,
                "calls": calls.astype(np.int64),
                "total_ns": total,
                "mean_ns": total // np.maximum(calls, 1),
                "share": _share(total, _steps_ns(recording, data)),
                "occupancy": occupancy,
                "sm_efficiency": sm_efficiency,
            },
            {"name": words, "class": kinds},
        )
        parts.append(own.take(np.argsort(-total, kind="stable")))
    return Table.concat(parts) if parts else _empty(_CLASSED, _OF_KERNELS, _SHARES)


def _occupancy(table: Table, index: Column, took: Column, count: int) -> Column:
    """Return each name's estimated occupancy (share of the warps that fit, weighted by time), NaN if unknown.

    A running kernel has a positive occupancy, so 0 means that the profiler could not tell (for example it does not know
    a kernel's shared memory beyond the usual limit).
    """
    known = table["occupancy"] > 0
    weight = np.bincount(index, weights=took * known, minlength=count)
    whole = np.bincount(index, weights=took * known * np.maximum(table["occupancy"], 0) / 100, minlength=count)
    return np.where(weight > 0, whole / np.maximum(weight, 1), np.nan)


def _class(kernel: str, role: int) -> str:
    """Return the class of a kernel by its name: communication, copy, tensor_core, matmul (other products), or other."""
    if role != COMPUTE:
        return _ROLES[role]
    return "tensor_core" if uses_tensor_cores(kernel) else "matmul" if is_matmul(kernel) else "other"


def _chosen(recording: Recording) -> list[RankData]:
    ranks = [data for data in recording.ranks if data.complete] or recording.ranks
    late = [data for data in ranks if data.rank == recording.verdict.rank]
    return sorted([*late, *[data for data in ranks if data not in late]][:RANKS], key=lambda data: data.rank)


def _steps_ns(recording: Recording, data: RankData) -> int:
    table = recording.analysed_steps
    return int(table["step_ns"][table["rank"] == data.rank].sum())


def _share(total: Column, whole: int) -> Column:
    return total / whole if whole else np.full(len(total), np.nan)


def _by_name(recording: Recording, *, modules: bool) -> Table:
    parts = [_of_rank(recording, data, modules=modules) for data in _chosen(recording)]
    parts = [part for part in parts if len(part)]
    numbers = ("rank", "calls", "self_cpu_ns", "cpu_ns", "self_device_ns", "device_ns")
    return Table.concat(parts) if parts else _empty(("name",), numbers)


def _of_rank(recording: Recording, data: RankData, *, modules: bool) -> Table:
    host = data.host
    inside = np.isin(step_at(host["start"], data.steps.sort("host_start")), recording.steps_analysed)
    host = host.take(inside & (host["start"] != UNKNOWN) & (host["duration"] >= 0))
    host = host.take(np.lexsort([-host["duration"], host["start"], host["thread"]]))
    parent = _parents(host)
    took = host["duration"]
    nested = np.zeros(len(host), np.int64)
    holder = parent if modules else _through_ranges(host, parent)
    of_kind = (holder >= 0) & ((host["annotation"] == 0) | modules)
    np.add.at(nested, holder[of_kind], took[of_kind])
    own, all_below = _device_time(data, host, parent, recording.steps_analysed)
    names = host.words["name"]
    wanted = [word.startswith(MODULE_PREFIX) if modules else not word.startswith(_NO_STEP) for word in names]
    chosen = np.array([*wanted, False])[host["name"]] & (
        (host["annotation"] == 1) if modules else host["annotation"] == 0
    )
    rows = np.flatnonzero(chosen)
    outer = rows[~_inside_itself(host, parent, rows)]  # count the time of a recursive operator only once
    found, index = np.unique(host["name"][rows], return_inverse=True)
    at = {code: place for place, code in enumerate(found.tolist())}
    outer_index = np.array([at[code] for code in host["name"][outer].tolist()], np.int64)
    count = len(found)
    gpu = data.mode == "device"
    unknown = np.full(count, UNKNOWN)
    device = _summed(outer_index, all_below[outer], count)
    table = Table(
        {
            "rank": np.full(count, data.rank),
            "name": np.arange(count, dtype=np.int32),
            "calls": np.bincount(index, minlength=count).astype(np.int64),
            "self_cpu_ns": _summed(index, np.maximum(0, took - nested)[rows], count),
            "cpu_ns": _summed(outer_index, took[outer], count),
            "self_device_ns": _summed(index, own[rows], count) if gpu else unknown,
            "device_ns": device if gpu else unknown,
            "share": _share(device if gpu else _summed(outer_index, took[outer], count), _steps_ns(recording, data)),
        },
        {"name": [names[code] for code in found.tolist()]},
    )
    return table.take(np.argsort(-table["self_device_ns" if gpu else "self_cpu_ns"], kind="stable"))


def _parents(host: Table) -> Column:
    """Return for each row the row it is nested in, -1 if there is none. Rows are sorted by thread, start and length."""
    parent = np.full(len(host), -1)
    stack: list[tuple[int, int]] = []  # (row, end)
    last = None
    rows = zip(host["thread"].tolist(), host["start"].tolist(), end_of(host).tolist(), strict=True)
    for row, (thread, start, end) in enumerate(rows):
        if thread != last:
            stack, last = [], thread
        while stack and stack[-1][1] <= start:
            stack.pop()
        if stack:
            parent[row] = stack[-1][0]
        stack.append((row, end))
    return parent


def _through_ranges(host: Table, parent: Column) -> Column:
    """Return for each row the operator it is nested in, skipping named ranges in between."""
    beyond = np.where(host["annotation"] == 1, parent, np.arange(len(host)))
    while True:  # each round doubles how far it looks
        further = np.where(beyond >= 0, beyond[np.maximum(beyond, 0)], -1)
        if np.array_equal(further, beyond):
            return np.where(parent >= 0, beyond[np.maximum(parent, 0)], -1)
        beyond = further


def _device_time(data: RankData, host: Table, parent: Column, steps: list[int]) -> tuple[Column, Column]:
    """Return for each row the device time (ns) that it launched itself, and including all rows nested in it."""
    own = np.zeros(len(host), np.int64)
    kernels = data.kernels
    if data.mode != "device" or not len(kernels) or not len(host):
        return own, own.copy()
    usable = (kernels["launch_start"] != UNKNOWN) & np.isin(kernels["step"], steps)
    kernels = kernels.take(usable)
    took = kernels["end"] - kernels["start"]
    ends = end_of(host)
    for thread in np.unique(kernels["launch_thread"]).tolist():
        rows = np.flatnonzero(host["thread"] == thread)
        mine = np.flatnonzero(kernels["launch_thread"] == thread)
        if not len(rows):
            continue
        times = kernels["launch_start"][mine]
        at = np.searchsorted(host["start"][rows], times, "right") - 1
        place = np.where(at >= 0, rows[np.maximum(at, 0)], -1)
        while True:  # move up to the first row that is still running
            out = (place >= 0) & (ends[np.maximum(place, 0)] <= times)
            if not out.any():
                break
            place[out] = parent[place[out]]
        found = place >= 0
        np.add.at(own, place[found], took[mine][found])
    below = own.copy()
    for row in range(len(host) - 1, -1, -1):  # children are sorted after their parents
        if parent[row] >= 0:
            below[parent[row]] += below[row]
    return own, below


def _inside_itself(host: Table, parent: Column, rows: Column) -> Column:
    """Return a mask of the rows inside another row of the same name."""
    names = host["name"]
    result = np.zeros(len(rows), bool)
    for place, row in enumerate(rows.tolist()):
        above = int(parent[row])
        while above >= 0 and names[above] != names[row]:
            above = int(parent[above])
        result[place] = above >= 0
    return result


def _summed(index: Column, values: Column, count: int) -> Column:
    total = np.zeros(count, np.int64)
    np.add.at(total, index, values)
    return total


def _empty(words: tuple[str, ...], numbers: tuple[str, ...], shares: tuple[str, ...] = ("share",)) -> Table:
    columns = {name: np.zeros(0, np.int32) for name in words} | {name: np.zeros(0, np.int64) for name in numbers}
    return Table(columns | {name: np.zeros(0) for name in shares}, {name: [] for name in words})
