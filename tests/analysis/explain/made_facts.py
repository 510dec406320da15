"""Facts made by hand, for the rules about bottlenecks: two steps of two ranks, 100 ms each."""

from typing import Any

import numpy as np

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.table import Table
from rankscope.analysis.explain import findings
from rankscope.analysis.explain.facts import Facts
from rankscope.analysis.explain.finding import Finding
from rankscope.analysis.measure.stragglers import StepVerdict, Verdict
from rankscope.analysis.rank.activity import ACTIVITY
from rankscope.conf import RunConfig, parse_config

MS = 1_000_000
STEP = 100 * MS
LIMITS = Limits()
PARTS = ("compute", "exposed_transfer", "exposed_wait", "copy", "data_stall", "host_gap")


def steps(**parts: list[int]) -> Table:
    """Two steps of two ranks, 100 ms each; parts in ms by rank, compute takes the rest."""
    columns: dict[str, Any] = {"step": np.array([4, 4, 5, 5]), "rank": np.array([0, 1, 0, 1])}
    for name in PARTS:
        columns[f"{name}_ns"] = np.array(parts.get(name, [0, 0]) * 2) * MS
    columns["compute_ns"] = STEP - sum(columns[f"{name}_ns"] for name in PARTS[1:])
    columns["step_ns"] = np.full(4, STEP)
    columns["comm_ns"] = np.array(parts.get("comm", [10, 10]) * 2) * MS
    columns["exposed_comm_ns"] = columns["exposed_transfer_ns"] + columns["exposed_wait_ns"]
    columns |= {"host_start_ns": np.zeros(4, int), "host_end_ns": np.full(4, STEP), "data_wait_ns": np.zeros(4, int)}
    columns["launches"] = np.array(parts.get("launches", [100, 100]) * 2)
    return Table(columns)


def activity(**columns: list[int]) -> Table:
    """Rows as those of `steps`; values by rank."""
    table = {name: np.array(columns.get(name, [0, 0]) * 2, np.int64) for name in ACTIVITY if name != "step"}
    return Table({"step": np.array([4, 4, 5, 5]), **table})


def syncs(idle_ms: float) -> Table:
    words = {"call": ["cudaStreamSynchronize"], "operator": ["aten::item"], "range": ["forward"], "function": ["f"]}
    codes = {name: np.zeros(1, np.int32) for name in words}
    return Table(
        {"step": np.array([4]), **codes, "count": np.array([2]), "idle_ns": np.array([int(idle_ms * MS)])}, words
    )


def all_reduces(sizes: list[int], exposed_ms: float = 0.0, dtype: str = "Float", took_ms: float = 0.3) -> Table:
    """The all-reduces of both steps on both ranks, in order."""
    count = len(sizes)
    call = np.repeat(np.arange(2 * count), 2)
    return Table(
        {
            "kind": np.zeros(4 * count, np.int32),
            "dtype": np.zeros(4 * count, np.int32),
            "call": call,
            "step": 4 + call // count,
            "rank": np.tile([0, 1], 2 * count),
            "bytes": np.array(sizes)[call % count],
            "group_size": np.full(4 * count, 2),
            "start_ns": call * MS,
            "end_ns": call * MS + int(took_ms * MS),
            "transfer_clockfree_ns": np.full(4 * count, int(took_ms * MS)),
            "scope": np.full(4 * count, -1),
            "group_id": np.zeros(4 * count, np.int32),
            "exposed_ns": np.full(4 * count, int(exposed_ms * MS)),
        },
        {"kind": ["allreduce"], "dtype": [dtype], "group_id": ["0|[0, 1]"]},
    )


def gathers(exposed_ms: float) -> Table:
    """One all-gather of FSDP per step and rank, of which nothing is hidden."""
    calls = all_reduces([10**8], exposed_ms=exposed_ms, took_ms=exposed_ms)
    columns = {**calls.columns, "scope": np.zeros(len(calls), np.int32)}
    return Table(columns, {**calls.words, "kind": ["allgather"], "scope": ["FSDP::all_gather (layers.0)"]})


def facts(table: Table | None = None, **more: Any) -> Facts:
    return Facts(steps=steps() if table is None else table, **{"verdict": Verdict(verdict="none")} | more)


def config(**keys: Any) -> RunConfig:
    return parse_config({"world_size": 2} | keys)


def late(recoverable_ms: float, cause: str = "compute") -> Verdict:
    excess = dict.fromkeys(("compute", "data", "host", "copy", "earlier_comm"), 0) | {cause: int(recoverable_ms * MS)}
    amount = int(recoverable_ms * MS)
    one = [StepVerdict(step=step, rank=1, lateness_ns=amount, excess_ns=excess) for step in (4, 5)]
    return Verdict(verdict="persistent", rank=1, ranks=[1], cause=cause, lateness_ns=MS, steps_judged=2, per_step=one)


def restarts(restart_ms: float) -> list[dict[str, Any]]:
    """Both ranks' loaders start again in both steps."""
    return [{"rank": rank, "epoch_restart_ms": restart_ms, "outlier_steps": [4, 5]} for rank in (0, 1)]


def busy(name: str, value: int, **more: int) -> Facts:
    return facts(activity=activity(**{name: [value, value]}, **{key: [item, item] for key, item in more.items()}))


def found(case: Facts, limits: Limits = LIMITS) -> dict[str, Finding]:
    return {item.id: item for item in findings.find(case, limits)}
