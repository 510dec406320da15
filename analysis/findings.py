"""What costs time, with what a fix would bring: rules on the analysed steps, ranked by recoverable time.

Comes in: the steps' table and the verdict. Goes out: findings. A fix that removes x_r from each rank's segment
brings max_r seg_r - max_r (seg_r - x_r), where a rank's segment is its step without exposed waiting. A straggler's
segment is the one before the collective where it was latest, against the median of the other ranks.
"""

from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.stragglers import Verdict
from rankscope.analysis.table import UNKNOWN, Column, Table


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the step from which a finding is reported, and from which it is medium or high."""

    reported: float = 0.03
    medium: float = 0.05
    high: float = 0.10


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that costs time."""

    id: str
    severity: str
    ranks: list[int]
    recoverable_ms: float | None
    evidence: dict[str, Any]
    advice: str


_ADVICE = {
    "data_stall": "the GPU waits for batches: more loader workers (num_workers=...), a larger data.prefetch_factor, "
    "or cheaper decoding",
    "exposed_comm": "gradients are reduced while nothing computes: larger batches or gradient_accumulation, another "
    "ddp.bucket_cap_mb, or ddp.comm_hook=bf16",
    "host_gap": "the GPU waits for launches: compile=reduce-overhead (CUDA graphs), larger batches, or fewer "
    "synchronising calls in the loop",
    "host_gap_cpu": "nothing computes while Python runs between operators: larger batches, or compile=default",
    "copy": "the GPU waits for copies: data.pin_memory=true and data.non_blocking=true",
    "straggler_compute": "this rank computes longer: compare its batches' sizes, clocks, temperature and neighbours",
    "straggler_data": "this rank's loader is slower: look at its workers, its storage, its share of the CPU",
    "straggler_host": "this rank launches later: look at its CPU, at synchronising calls and at garbage collection",
    "straggler_copy": "this rank's copies take longer: look at pinning and at the path between its CPU and GPU",
    "unconfirmed": "the plain pass does not show it: profiling slows this rank's host; nothing to fix",
    "straggler_earlier_comm": "collectives of another group hold this rank up: see which group is slow",
    "straggler_mixed": "this rank is late for several reasons: see the shares",
}


def find(steps: Table, verdict: Verdict, limits: Limits, *, gpu: bool = True) -> list[Finding]:
    """Return the findings over the analysed steps (one row a step and rank), the costliest first."""
    if not len(steps):
        return []
    step_ns = float(np.median(steps["step_ns"]))
    found = [
        _straggler(steps, verdict, step_ns, limits),
        _removable("data_stall", "data_stall_ns", steps, step_ns, limits),
        _removable("host_gap", "host_gap_ns", steps, step_ns, limits),
        _removable("copy", "copy_ns", steps, step_ns, limits),
        _exposed(steps, step_ns, limits),
    ]
    kept = [finding for finding in found if finding is not None]
    if not gpu:
        advice = _ADVICE["host_gap_cpu"]
        kept = [msgspec.structs.replace(f, advice=advice) if f.id == "host_gap" else f for f in kept]
    return sorted(kept, key=lambda finding: -(finding.recoverable_ms or 0))


def _segments(steps: Table) -> tuple[Column, Column]:
    """Return (index of each row's step, its segment): the step without exposed waiting (ns)."""
    _, index = np.unique(steps["step"], return_inverse=True)
    waited = np.where(steps["exposed_wait_ns"] == UNKNOWN, 0, steps["exposed_wait_ns"])
    return index, steps["step_ns"] - waited


def _largest(values: Column, index: Column) -> Column:
    result = np.full(index.max() + 1, np.iinfo(np.int64).min)
    np.maximum.at(result, index, values)
    return result


def _removable(name: str, column: str, steps: Table, step_ns: float, limits: Limits) -> Finding | None:
    index, segment = _segments(steps)
    gain = float((_largest(segment, index) - _largest(segment - steps[column], index)).mean())
    per_rank = {int(rank): float(steps[column][steps["rank"] == rank].mean()) for rank in np.unique(steps["rank"])}
    ranks = [rank for rank, value in per_rank.items() if value >= limits.reported * step_ns]
    if not ranks or gain < limits.reported * step_ns:
        return None
    evidence = {f"{name}_ms": {str(rank): _ms(per_rank[rank]) for rank in ranks}, "step_ms": _ms(step_ns)}
    return _finding(name, ranks, gain, step_ns, evidence, limits)


def _exposed(steps: Table, step_ns: float, limits: Limits) -> Finding | None:
    known = steps["exposed_transfer_ns"] != UNKNOWN
    if not known.any():
        return None
    gain = float(steps["exposed_transfer_ns"][known].mean())
    if gain < limits.reported * step_ns:
        return None
    comm = steps["comm_ns"][known].mean()
    evidence = {"exposed_transfer_ms": _ms(gain), "comm_ms": _ms(float(comm)), "step_ms": _ms(step_ns)}
    ranks = sorted(np.unique(steps["rank"]).tolist())
    return _finding("exposed_comm", ranks, gain, step_ns, evidence, limits)


def _straggler(steps: Table, verdict: Verdict, step_ns: float, limits: Limits) -> Finding | None:
    if not verdict.per_step:
        return None
    gain = sum(item.recoverable_ns for item in verdict.per_step) / verdict.steps_judged
    ranks = [verdict.rank] if verdict.rank is not None else sorted({item.rank for item in verdict.per_step})
    evidence = {
        "verdict": verdict.verdict,
        "lateness_ms": _ms(verdict.lateness_ns or 0),
        "cause_share": verdict.cause_share,
        "steps_late": len(verdict.per_step),
        "steps_judged": verdict.steps_judged,
    }
    return _finding(f"straggler_{verdict.cause or 'mixed'}", ranks, gain, step_ns, evidence, limits)


def _finding(
    name: str, ranks: list[int], gain: float, step_ns: float, evidence: dict[str, Any], limits: Limits
) -> Finding:
    return Finding(
        id=name,
        severity=_severity(gain / step_ns, limits),
        ranks=ranks,
        recoverable_ms=_ms(gain),
        evidence=evidence,
        advice=_ADVICE.get(name, _ADVICE["straggler_mixed"]),
    )


def _severity(share: float, limits: Limits) -> str:
    return "high" if share >= limits.high else "medium" if share >= limits.medium else "low"


def without_profiler(
    found: list[Finding], step_ms: float | None, extra_ms: float | None, confirmed: bool | None, limits: Limits
) -> list[Finding]:
    """Take off what profiling itself added to a step (`extra_ms`, None when unknown) from what a fix would bring.

    `step_ms` is the step without it. The profiler slows the host: so that time lies in gaps between launches, and a
    rank that is late only because it is traced has nothing to fix.
    """
    result = []
    for finding in found:
        gain = finding.recoverable_ms
        if finding.id.startswith("straggler") and confirmed is False:
            evidence = finding.evidence | {"confirmed_by_plain": False}
            changes = {"recoverable_ms": 0.0, "severity": "low", "evidence": evidence, "advice": _ADVICE["unconfirmed"]}
            finding = msgspec.structs.replace(finding, **changes)
        elif finding.id in ("host_gap", "straggler_host") and extra_ms is not None and gain is not None:
            left = round(max(0.0, gain - max(0.0, extra_ms)), 4)
            share = left / step_ms if step_ms else 0.0
            if share < limits.reported and finding.id == "host_gap":
                continue
            evidence = finding.evidence | {"traced_ms": gain, "added_by_profiler_ms": round(extra_ms, 4)}
            changes = {"recoverable_ms": left, "evidence": evidence, "severity": _severity(share, limits)}
            finding = msgspec.structs.replace(finding, **changes)
        result.append(finding)
    return sorted(result, key=lambda finding: -(finding.recoverable_ms or 0))


def _ms(nanoseconds: float) -> float:
    return round(nanoseconds * 1e-6, 4)
