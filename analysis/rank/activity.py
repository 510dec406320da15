"""Summarises what a rank's device and driver did in each step, for the rules about bottlenecks.

Input: a rank's device records, launches and operators. Output: the `ACTIVITY` columns, one row per step, and the
`SYNCS` columns, one row per step and place in the code that made the host wait for the device.
"""

import re
from collections.abc import Callable

import numpy as np

from rankscope.analysis.core import group_by, nesting
from rankscope.analysis.core.intervals import Intervals, both, measure, minus, union
from rankscope.analysis.core.kernel_families import family, is_matmul, tensor_cores, uses_tensor_cores
from rankscope.analysis.core.name_patterns import found_in, remembered
from rankscope.analysis.core.record_kinds import COMPUTE, COPY
from rankscope.analysis.core.table import UNKNOWN, Column, Table, encode
from rankscope.analysis.rank.steps import step_at
from rankscope.analysis.read.rank_trace import Where, end_of

ACTIVITY = (
    "step", "kernels", "kernel_ns", "kernel_p50_ns", "launch_p50_ns", "matmul_ns", "tensor_ns", "tensor_unknown_ns",
    "unknown_ns", "h2d_ns", "d2h_ns", "on_device_ns", "pageable_ns", "mallocs", "malloc_idle_ns", "syncs",
    "sync_idle_ns", "long_idle_ns",
)  # fmt: skip
SYNCS = ("step", "call", "operator", "range", "function", "count", "wait_ns", "idle_ns")
_LONG, _LONG_NS = 20, 1_000_000  # launches, and ns: a pause of the device longer than both is not one of launching
_BLOCKS = 20  # times the median call to the driver: a call that takes longer waits for something
_ROUNDING_NS = 1000  # a call may seem to begin that much before the end of the one before
_NO_LIMIT = np.iinfo(np.int64).max
_PLACE = ("call", "operator", "range", "function")

_SYNC_CALL = found_in(re.compile(r"cu(?:da)?(?:Stream|Device|Event|Ctx)Synchronize|^(?:hip)\w*Synchronize"))
_MALLOC_CALL = found_in(
    re.compile(r"^(?:cuda|hip)(?:Malloc|Free)(?:Async|FromPoolAsync)?$|^cuMem(?:Alloc|Free|Create|Release)")
)
_PAGEABLE = found_in(re.compile(r"pageable", re.I))
_HTOD = found_in(re.compile(r"HtoD|Host.to.Device|(?:Host|Pinned|Pageable) -> Device", re.I))
_DTOH = found_in(re.compile(r"DtoH|Device.to.Host|Device -> (?:Host|Pinned|Pageable)", re.I))
_ON_DEVICE = found_in(re.compile(r"DtoD|Device.to.Device|Device -> Device|Memset", re.I))
_OF_COPIES = ("h2d_ns", "d2h_ns", "on_device_ns", "pageable_ns")
_WINDOW_MARK = found_in(re.compile(r"ProfilerStep#|iteration", re.I))


def activity(
    steps: Table, kernels: Table, launches: Table, host: Table, waits: Intervals, where: Where | None = None
) -> tuple[Table, Table]:
    """Return both tables. A rank without device records has rows of zeros and no synchronisations.

    Idle time during `waits` for the data loader is the loader's, and that inside allocations is theirs: no idle time
    counts under two names. `where` finds the Python function around a call, if stacks were recorded.
    """
    count = len(steps)
    sums = {name: np.zeros(count, np.int64) for name in ACTIVITY if name != "step"}
    table = Table({"step": steps["step"], **sums})
    if not count or not len(launches) or not len(kernels):
        return table, _no_syncs()
    idle = _idle(steps, kernels)
    device = _of_device(steps, kernels)
    device["launch_p50_ns"] = _launch_intervals(steps, kernels)
    mallocs = _calls(launches, steps, _MALLOC_CALL)
    spans = union(mallocs["start"], end_of_calls(mallocs))
    idle = minus(idle, waits)
    waited = both(idle, spans)
    idle = minus(idle, spans)
    device["mallocs"] = _count(mallocs["step"], steps)
    device["malloc_idle_ns"] = measure(waited, steps["start"], steps["end"])
    pauses = _pauses(idle, device["launch_p50_ns"])
    syncs = _syncs(steps, kernels, launches, host, idle, pauses, where)
    device["syncs"] = _sum(syncs["step"], syncs["count"], steps)
    device["sync_idle_ns"] = _sum(syncs["step"], syncs["idle_ns"], steps)
    device["long_idle_ns"] = measure(pauses, steps["start"], steps["end"])
    return Table({"step": steps["step"], **{name: device[name] for name in ACTIVITY if name != "step"}}), syncs


def end_of_calls(calls: Table) -> Column:
    return calls["end"] if "end" in calls.columns else np.asarray(end_of(calls))


def _idle(steps: Table, kernels: Table) -> Intervals:
    """Return when the device had nothing to do, from the first step's start to the last step's end."""
    busy = union(kernels["start"], kernels["end"])
    whole = union(steps["start"].min(keepdims=True), steps["end"].max(keepdims=True))
    return minus(whole, busy)


def _pauses(idle: Intervals, launch_ns: Column) -> Intervals:
    """Return when the device paused for longer than launches explain: a sleep, Python, a file."""
    usual = float(np.median(launch_ns[launch_ns > 0])) if (launch_ns > 0).any() else 0.0
    return idle[:, idle[1] - idle[0] > max(_LONG_NS, _LONG * usual)]


_TESTS: dict[str, Callable[[str], bool]] = {
    "matmul_ns": is_matmul,
    "tensor_ns": uses_tensor_cores,
    "tensor_unknown_ns": lambda word: is_matmul(word) and tensor_cores(word) is None,
    "unknown_ns": lambda word: family(word) is None,
    "on_device_ns": _ON_DEVICE,
    "h2d_ns": _HTOD,
    "d2h_ns": _DTOH,
    "pageable_ns": _PAGEABLE,
}


@remembered
def _passed(name: str) -> int:
    """Return which of `_TESTS` a name passes: one bit for each, in their order."""
    return sum(int(holds(name)) << bit for bit, holds in enumerate(_TESTS.values()))


def _of_device(steps: Table, kernels: Table) -> dict[str, Column]:
    took = kernels["end"] - kernels["start"]
    compute, copy = kernels["role"] == COMPUTE, kernels["role"] == COPY
    step = group_by.of_keys(kernels["step"], steps["step"])
    found = {}
    passed = kernels.of_words("name", _passed, otherwise=np.uint8(0))
    for bit, name in enumerate(_TESTS):
        counted = (passed & 1 << bit != 0) & (copy if name in _OF_COPIES else compute)
        found[name] = group_by.sums(took * counted, step, len(steps))
    found["kernels"] = _count(kernels["step"][compute], steps)
    found["kernel_ns"] = group_by.sums(took * compute, step, len(steps))
    at = step[compute]
    found["kernel_p50_ns"] = group_by.median(took[compute][at >= 0], at[at >= 0], len(steps))
    return found


def _launch_intervals(steps: Table, kernels: Table) -> Column:
    """Return each step's median time (ns) from one launch to the next on the same thread: the host's cost per launch.

    The median keeps a single sleep or wait for the device from looking like slow launches.
    """
    at = group_by.of_keys(kernels["step"], steps["step"])
    known = (kernels["launch_start"] != UNKNOWN) & (at >= 0)
    at, start, thread = at[known], kernels["launch_start"][known], kernels["launch_thread"][known]
    order = np.lexsort([start, thread, at])
    at, start, thread = at[order], start[order], thread[order]
    same = (np.diff(thread) == 0) & (np.diff(at) == 0)
    return group_by.median(np.diff(start)[same], at[1:][same], len(steps))


def _syncs(
    steps: Table,
    kernels: Table,
    launches: Table,
    host: Table,
    idle: Intervals,
    pauses: Intervals,
    where: Where | None,
) -> Table:
    """Return what made the host wait, and how long the device was then idle.

    Without the wait the host would have launched everything after it earlier, by the time for which the call blocked.
    So of the idle time that follows, up to the next call that blocks, only that much counts. A later pause is another
    matter: the host does something else there. If the thread launches nothing, its wait holds up only the next record.
    A wait costs the step nothing if the step launches nothing after it: the window of a profiler ends like this.
    """
    calls = _calls(launches, steps, _SYNC_CALL)
    calls = calls.take(np.argsort(calls["start"], kind="stable"))
    begins = np.sort(kernels["start"], kind="stable")
    ends = end_of_calls(calls)
    at = np.searchsorted(begins, ends)
    following = at < len(begins)
    until = np.append(np.maximum(calls["start"][1:], ends[:-1]), _NO_LIMIT)
    until = np.maximum(ends, np.minimum(until, _next_block(launches, ends)))
    resumes = np.minimum(until, np.where(following, begins[np.minimum(at, len(begins) - 1)], ends))
    goes_on = following & np.isin(calls["thread"], kernels["launch_thread"])
    until = np.maximum(resumes, np.minimum(until, np.where(goes_on, begins[-1], ends)))
    idled = measure(idle, ends, resumes) + measure(minus(idle, pauses), resumes, until)
    idled = np.minimum(idled, ends - calls["start"])
    operators, ranges = _places(calls, host)
    functions = [None] * len(calls) if where is None else where(calls)
    kept = following
    names = [launches.words["name"][code] for code in calls["name"].tolist()]
    keys: dict[tuple[int, str, str | None, str | None, str | None], list[int]] = {}
    for row in np.flatnonzero(kept).tolist():
        key = (int(calls["step"][row]), names[row], operators[row], ranges[row], functions[row])
        sums = keys.setdefault(key, [0, 0, 0])
        sums[0] += 1
        sums[1] += int(ends[row] - calls["start"][row])
        sums[2] += int(idled[row])
    columns: dict[str, Column] = {"step": np.array([key[0] for key in keys], np.int64)}
    words: dict[str, list[str]] = {}
    for index, name in enumerate(_PLACE, start=1):
        columns[name], words[name] = encode([key[index] for key in keys])  # type: ignore[misc]
    for index, name in enumerate(("count", "wait_ns", "idle_ns")):
        columns[name] = np.array([sums[index] for sums in keys.values()], np.int64)
    return Table(columns, words)


def _next_block(launches: Table, times: Column) -> Column:
    """Return when the next call to the driver begins that takes far longer than usual: it waits for the device, too."""
    known = launches["start"] != UNKNOWN
    took = end_of_calls(launches)[known] - launches["start"][known]
    blocks = np.sort(launches["start"][known][took > _BLOCKS * np.median(took)])
    return np.append(blocks, _NO_LIMIT)[np.searchsorted(blocks, times - _ROUNDING_NS)]


def _places(calls: Table, host: Table) -> tuple[list[str | None], list[str | None]]:
    """Return for each call the outermost operator and the innermost named range around it on its thread."""
    host = host.take(np.isin(host["thread"], calls["thread"]) & (host["start"] != UNKNOWN))
    thread, start, end = host["thread"], host["start"], np.asarray(end_of(host))
    order = nesting.order(thread, start, end)
    thread, start, end = thread[order], start[order], end[order]
    parent = nesting.parents(thread, start, end)
    noted, name = host["annotation"][order] != 0, host["name"][order]
    is_range = noted & ~host.where("name", _WINDOW_MARK)[order]
    operator, inner = np.full(len(calls), -1), np.full(len(calls), -1)
    times = calls["start"]
    place = nesting.running_at(times, calls["thread"], threads=thread, start=start, end=end, parent=parent)
    while (rows := np.flatnonzero(place >= 0)).size:  # outwards: the last operator found is the outermost
        row = place[rows]
        operator[rows[~noted[row]]] = name[row[~noted[row]]]
        first = is_range[row] & (inner[rows] < 0)
        inner[rows[first]] = name[row[first]]
        place[rows] = parent[row]
        place = nesting.out_of_ended(place, times, end, parent)
    words = host.words["name"]
    return _words(operator, words), _words(inner, words)


def _words(codes: Column, words: list[str]) -> list[str | None]:
    return [words[code] if code >= 0 else None for code in codes.tolist()]


def _calls(launches: Table, steps: Table, pattern: Callable[[str], bool]) -> Table:
    """Return the matching runtime calls that were made inside a step, with the step."""
    chosen = launches.where("name", pattern)
    calls = launches.take(chosen & (launches["start"] != UNKNOWN))
    calls = calls.with_columns(step=step_at(calls["start"], steps.sort("host_start")))
    return calls.take(np.isin(calls["step"], steps["step"]))


def _sum(of: Column, values: Column, steps: Table) -> Column:
    return group_by.sums(values, group_by.of_keys(of, steps["step"]), len(steps))


def _count(of: Column, steps: Table) -> Column:
    return _sum(of, np.ones(len(of), np.int64), steps)


def _no_syncs() -> Table:
    columns = {name: np.zeros(0, np.int32 if name in _PLACE else np.int64) for name in SYNCS}
    return Table(columns, {name: [] for name in _PLACE})
