"""Tables of where the time of the device and the host goes: by operator, by module, by kernel.

An operator's self time excludes what is nested in it on its thread. The device time of a kernel belongs to the
innermost operator around its launch, and to every operator and range around that one. Times are sums over the analysed
steps of a rank. Shares are of the sum of its steps.
"""

from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.core import nesting
from rankscope.analysis.core.kernel_families import is_matmul, uses_tensor_cores
from rankscope.analysis.core.on_disk import moved
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
_PIECE = 1 << 18  # rows that are followed at a time
_CLASSED, _OF_KERNELS = ("name", "class"), ("rank", "calls", "total_ns", "mean_ns")
_OF_HOST = ("start", "duration", "name", "thread", "annotation")
_SHARES = ("share", "occupancy", "sm_efficiency")


class Walk(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of a rank over the analysed steps: a `_Sums` of its operators and one of its modules."""

    data: RankData
    operators: "_Sums"
    modules: "_Sums"
    steps_ns: int


class _Sums:
    """Numbers of calls and times (ns) by the code of a name."""

    def __init__(self, names: int) -> None:
        self.calls, self.self_cpu, self.cpu, self.self_device, self.device = np.zeros((5, names), np.int64)


def walk(recording: Recording) -> list[Walk]:
    """Follow the nesting of the operators of the ranks that tables by name show."""
    return [_walked(recording, data) for data in _chosen(recording)]


def operators(recording: Recording, walks: list[Walk] | None = None) -> Table:
    """Return one row per operator and rank, the longest on the device first (on a CPU: on the host)."""
    return _by_name(walk(recording) if walks is None else walks, modules=False)


def modules(recording: Recording, walks: list[Walk] | None = None) -> Table:
    """Return one row per named module, direction and rank."""
    table = _by_name(walk(recording) if walks is None else walks, modules=True)
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
        wanted = np.isin(data.kernels["step"], recording.steps_analysed)
        table = data.kernels.take(wanted, "start", "end", "name", "role", "occupancy", "sm_share")
        took = table["end"] - table["start"]
        names, first, index = np.unique(table["name"], return_index=True, return_inverse=True)
        total, calls = _summed(index, took, len(names)), np.bincount(index, minlength=len(names))
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


def _by_name(walks: list[Walk], *, modules: bool) -> Table:
    parts = [_of_rank(each, modules=modules) for each in walks]
    parts = [part for part in parts if len(part)]
    numbers = ("rank", "calls", "self_cpu_ns", "cpu_ns", "self_device_ns", "device_ns")
    return Table.concat(parts) if parts else _empty(("name",), numbers)


def _walked(recording: Recording, data: RankData) -> Walk:
    """Sum up piece by piece, because a trace has millions of rows."""
    whole, words = data.host, data.host.words["name"]
    walked = Walk(
        data=data,
        operators=_Sums(len(words)),
        modules=_Sums(len(words)),
        steps_ns=_steps_ns(recording, data),
    )
    launched = _launched(data, recording.steps_analysed)
    wanted = _begins_in(whole, data.steps.sort("host_start"), recording.steps_analysed) & (whole["duration"] >= 0)
    for rows in nesting.pieces(whole["thread"], whole["start"], whole["duration"], wanted, _PIECE):
        host = whole.take(rows, *_OF_HOST)
        _add_piece(walked, host, nesting.parents(host["thread"], host["start"], end_of(host)), launched)
    return walked


def _begins_in(host: Table, steps: Table, analysed: list[int]) -> Column:
    """Return which rows begin in an analysed step."""
    start = host["start"]
    parts = [start[low : low + _PIECE] for low in range(0, len(start), _PIECE)]
    found = [np.isin(step_at(part, steps), analysed) & (part != UNKNOWN) for part in parts]
    return np.concatenate(found) if found else np.zeros(0, bool)


def _add_piece(walked: Walk, host: Table, parent: Column, launched: Table) -> None:
    depth = nesting.depths(parent)
    nested = nesting.with_nested(np.ones(len(host), np.int64), parent, depth) - 1
    repeated = nesting.inside_same(host["name"], nested)
    own = _device_time(launched, host, parent)
    device = nesting.with_nested(own, parent, depth) if own.any() else own
    for modules, sums in ((False, walked.operators), (True, walked.modules)):
        wanted = host.where("name", _is_module if modules else _is_operator)
        rows = np.flatnonzero(wanted & ((host["annotation"] == 1) == modules))
        if not len(rows):
            continue
        names, took = host["name"], host["duration"]
        outer = rows[~repeated[rows]]  # count the time of a recursive operator only once
        np.add.at(sums.calls, names[rows], 1)
        np.add.at(sums.self_cpu, names[rows], np.maximum(0, took - _nested_ns(host, parent, modules=modules))[rows])
        np.add.at(sums.self_device, names[rows], own[rows])
        np.add.at(sums.cpu, names[outer], took[outer])
        np.add.at(sums.device, names[outer], device[outer])


def _is_module(word: str) -> bool:
    return word.startswith(MODULE_PREFIX)


def _is_operator(word: str) -> bool:
    return not word.startswith(_NO_STEP)


def _nested_ns(host: Table, parent: Column, *, modules: bool) -> Column:
    """Return the time of the rows directly in each row; for operators, as if ranges between them were not there."""
    holder = parent if modules else _through_ranges(host, parent)
    counted = (holder >= 0) & ((host["annotation"] == 0) | modules)
    nested = np.zeros(len(host), np.int64)
    np.add.at(nested, holder[counted], host["duration"][counted])
    return nested


def _of_rank(walked: Walk, *, modules: bool) -> Table:
    sums = walked.modules if modules else walked.operators
    found = np.flatnonzero(sums.calls)
    count, gpu = len(found), walked.data.mode == "device"
    unknown = np.full(count, UNKNOWN)
    table = Table(
        {
            "rank": np.full(count, walked.data.rank),
            "name": np.arange(count, dtype=np.int32),
            "calls": sums.calls[found],
            "self_cpu_ns": sums.self_cpu[found],
            "cpu_ns": sums.cpu[found],
            "self_device_ns": sums.self_device[found] if gpu else unknown,
            "device_ns": sums.device[found] if gpu else unknown,
            "share": _share(sums.device[found] if gpu else sums.cpu[found], walked.steps_ns),
        },
        {"name": [walked.data.host.words["name"][code] for code in found.tolist()]},
    )
    return table.take(np.argsort(-table["self_device_ns" if gpu else "self_cpu_ns"], kind="stable"))


def _through_ranges(host: Table, parent: Column) -> Column:
    """Return for each row the operator it is nested in, skipping named ranges in between."""
    is_range = host["annotation"] == 1
    beyond = parent.copy()  # of a range: the operator around it; each round doubles how far that looks
    rows = np.flatnonzero(is_range & (parent >= 0))
    while len(rows := rows[is_range[beyond[rows]]]):
        beyond[rows] = beyond[beyond[rows]]
        rows = rows[beyond[rows] >= 0]
    inside = np.flatnonzero(parent >= 0)
    inside = inside[is_range[parent[inside]]]
    holder = parent.copy()
    holder[inside] = beyond[parent[inside]]
    return holder


def _launched(data: RankData, steps: list[int]) -> Table:
    """Return when, where and with what duration the device records of the steps were launched."""
    kernels = data.kernels
    if data.mode != "device":
        kernels = kernels.take(np.zeros(len(kernels), bool))
        return Table({"time": kernels["start"], "thread": kernels["start"], "took": kernels["start"]})
    usable = (kernels["launch_start"] != UNKNOWN) & np.isin(kernels["step"], steps)
    columns = {
        "time": moved(kernels["launch_start"][usable]),
        "thread": moved(kernels["launch_thread"][usable]),
        "took": moved(kernels["end"][usable] - kernels["start"][usable]),
    }
    return Table(columns).sort("thread", "time")


def _device_time(launched: Table, host: Table, parent: Column) -> Column:
    """Return for each row the device time (ns) that it launched itself; all rows end before the next piece begins."""
    own = np.zeros(len(host), np.int64)
    start, end, threads = host["start"], end_of(host), host["thread"]
    for thread in np.unique(threads).tolist():
        low, high = np.searchsorted(launched["thread"], (thread, thread + 1))
        first, last = np.searchsorted(threads, (thread, thread + 1))
        times = launched["time"][low:high]
        a, b = np.searchsorted(times, (start[first], end[first:last].max()))
        place = nesting.running_at(
            times[a:b], launched["thread"][low + a : low + b], threads=threads, start=start, end=end, parent=parent
        )
        found = place >= 0
        np.add.at(own, place[found], launched["took"][low + a : low + b][found])
    return own


def _summed(index: Column, values: Column, count: int) -> Column:
    total = np.zeros(count, np.int64)
    np.add.at(total, index, values)
    return total


def _empty(words: tuple[str, ...], numbers: tuple[str, ...], shares: tuple[str, ...] = ("share",)) -> Table:
    columns = {name: np.zeros(0, np.int32) for name in words} | {name: np.zeros(0, np.int64) for name in numbers}
    return Table(columns | {name: np.zeros(0) for name in shares}, {name: [] for name in words})
