"""`summary.json`, the contract for scripts and CI: an `Analysis` in, plain JSON values out.

Times in ms unless the key says otherwise; per-step values are means over the analysed steps. An unknown number is
null, and `warnings` says why; never 0, never NaN.
"""

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from rankscope.analysis.align.match import group_members, group_name
from rankscope.analysis.core import group_by
from rankscope.analysis.core.kinds import bus_factor
from rankscope.analysis.core.notices import Notice
from rankscope.analysis.core.table import UNKNOWN, Column
from rankscope.analysis.core.units import known_of, mean_of, median_of, ms, sum_of, us
from rankscope.analysis.explain import hosts
from rankscope.analysis.measure.breakdown import PARTS, totals
from rankscope.analysis.measure.loader import loader_waits
from rankscope.analysis.measure.memory import memory_of
from rankscope.analysis.result import Analysis
from rankscope.analysis.verify import without_profiler
from rankscope.analysis.verify.null_reasons import clock_notices, null_reasons
from rankscope.analysis.verify.two_profilers import agreement, second_witness

SCHEMA = 1

_REPORT = re.compile(r"\.(sqlite|nsys-rep|qdstrm)$")
_OF_COMMUNICATION = (
    "comm_ms",
    "wait_ms",
    "transfer_ms",
    "exposed_comm_ms",
    "exposed_wait_ms",
    "exposed_transfer_ms",
    "overlap_ratio",
    "transfer_overlap_ratio",
)

Json = dict[str, Any]


def summarise(analysis: Analysis) -> Json:
    """Return the whole of `summary.json`."""
    notices = list(analysis.notices)
    without = without_profiler.read(analysis, notices)
    witness = second_witness(analysis, notices)
    agreed = None if witness is None else agreement(analysis, witness, notices)
    notices += clock_notices(analysis)
    notices += null_reasons(analysis)
    return {
        "schema": SCHEMA,
        "status": status(analysis, notices),
        "source": analysis.ranks[0].source,
        "pass": analysis.pass_name,
        "warnings": [notice.as_dict() for notice in notices],
        "world_size": analysis.world_size,
        "ranks": [data.rank for data in analysis.ranks],
        "missing_ranks": analysis.missing_ranks,
        "steps": analysis.steps_analysed,
        "alignment": _alignment(analysis),
        "per_rank": _per_rank(analysis),
        "totals": [totals(data) | {"complete": data.complete} for data in analysis.ranks],
        "hosts": _hosts(analysis),
        "collectives": _collectives(analysis),
        "stragglers": _stragglers(analysis, without.confirmed),
        "loader": loader_waits(analysis.ranks),
        "memory": [] if analysis.run_dir is None else memory_of(analysis.run_dir),
        "findings": [
            {name: getattr(finding, name) for name in finding.__struct_fields__}
            for finding in without_profiler.findings_of(analysis, without)
        ],
        "throughput": without.throughput,
        "profiler_overhead": without.overhead,
        "agreement": agreed,
        "versions": {"rankscope": version("rankscope")},
    }


def error_summary(message: str, notices: Sequence[Notice]) -> Json:
    """Return what is written when there are no numbers."""
    listed = [notice.as_dict() for notice in notices] or [{"kind": "error", "level": "error", "message": message}]
    return {
        "schema": SCHEMA,
        "status": "error",
        "source": _source_of(notices),
        "warnings": listed,
        "versions": {"rankscope": version("rankscope")},
    }


def _source_of(notices: Sequence[Notice]) -> str:
    """Return who wrote the files that gave no numbers, by their names."""
    return "nsys" if any(_REPORT.search(notice.file or "") for notice in notices) else "kineto"


def status(analysis: Analysis, notices: Sequence[Notice]) -> str:
    """Return ok, ok_with_warnings or partial."""
    levels = {notice.level for notice in notices}
    if analysis.missing_ranks or "partial" in levels:
        return "partial"
    return "ok_with_warnings" if "warning" in levels else "ok"


def _alignment(analysis: Analysis) -> Json:
    clock = analysis.alignment
    known = len(clock.residual_ns) > 0
    percentile = {f"p{q}": us(float(np.percentile(clock.residual_ns, q))) if known else None for q in (50, 95)}
    return {
        "method": clock.method,
        "reference_rank": clock.reference_rank,
        "offset_us": {str(rank): us(offset) for rank, offset in clock.offset_ns.items()},
        "drift_ppm": {
            str(rank): round(clock.drift[rank] * 1e6, 3) if rank in clock.drift else None for rank in clock.offset_ns
        },
        "residual_us": percentile,
        "end_spread_us": {"p50": us(float(np.median(clock.spread_ns))) if known else None},
        "error_bound_us": None if clock.bound_ns is None else us(clock.bound_ns),
        "feasible_width_us": None if clock.feasible_width_ns is None else us(clock.feasible_width_ns),
        "causality_violations": clock.causality_violations,
        "probes": {
            str(rank): {"offset_us": us(found.at(clock.origin + found.offset_ns)), "error_us": us(found.error_ns)}
            for rank, found in clock.probed.items()
        }
        or None,
        "unaligned_ranks": sorted(clock.unaligned),
    }


def _per_rank(analysis: Analysis) -> list[Json]:
    table = analysis.analysed_steps
    rows: list[Json] = []
    places = group_by.positions(table["rank"])
    for data in analysis.ranks:
        if data.rank not in places:
            continue
        own = table.take(places[data.rank])
        comm = float(own["comm_ns"].sum())
        transfer, exposed_transfer = sum_of(own["transfer_ns"]), sum_of(own["exposed_transfer_ns"])
        waited = own["data_wait_ns"]
        rows.append(
            {
                "rank": data.rank,
                "step_ms": mean_of(own["step_ns"]),
                "compute_ms": mean_of(own["compute_ns"]),
                "comm_ms": mean_of(own["comm_ns"]),
                "wait_ms": mean_of(own["wait_ns"]),
                "transfer_ms": mean_of(own["transfer_ns"]),
                "exposed_comm_ms": mean_of(own["exposed_comm_ns"]),
                "exposed_wait_ms": mean_of(own["exposed_wait_ns"]),
                "exposed_transfer_ms": mean_of(own["exposed_transfer_ns"]),
                "overlap_ratio": round(1 - float(own["exposed_comm_ns"].sum()) / comm, 6) if comm else None,
                "transfer_overlap_ratio": None
                if not transfer or exposed_transfer is None
                else round(1 - exposed_transfer / transfer, 6),
                "copy_ms": mean_of(own["copies_ns"]),
                "data_wait_ms": mean_of(waited),
                "data_stall_ms": mean_of(own["data_stall_ns"]),
                "host_gap_ms": mean_of(own["host_gap_ns"]),
                "gpu_busy_ratio": round(float(own["busy_ns"].sum()) / float(own["step_ns"].sum()), 6)
                if data.mode == "device"
                else None,
                "sm_efficiency": _share(sum_of(own["sm_busy_ns"]), own["step_ns"]),
                "breakdown_ms": {part: mean_of(own[f"{part}_ns"]) for part in PARTS},
            }
        )
        if not data.sees_communication and analysis.world_size > 1:
            hidden = {part: None for part in PARTS if part.startswith("exposed")}
            parts: Json = rows[-1].pop("breakdown_ms")
            rows[-1] = {**rows[-1], **dict.fromkeys(_OF_COMMUNICATION), "breakdown_ms": {**parts, **hidden}}
    return rows


def _share(part_ns: float | None, steps_ns: Column) -> float | None:
    return None if part_ns is None else round(part_ns / float(steps_ns.sum()), 6)


def _hosts(analysis: Analysis) -> list[Json]:
    """Return a row for each host of several; none where the ranks do not say where they ran."""
    bound, thresholds = analysis.alignment.bound_ns or 0, analysis.options.thresholds
    judged = analysis.steps_judged if analysis.verdict.verdict != "undetermined" else []
    return hosts.rows(analysis.ranks, analysis.calls, analysis.analysed_steps, judged, bound, thresholds)


def _collectives(analysis: Analysis) -> list[Json]:
    """Group the calls by process group, kind and size: the largest total first."""
    calls, by_host = analysis.calls, hosts.hosts_of(analysis.ranks)
    keys = np.stack([calls["group_id"], calls["kind"], calls["bytes"]], axis=1).astype(np.int64)
    found, index = np.unique(keys, axis=0, return_inverse=True)
    places = group_by.positions(index.ravel())
    rows = []
    for number, (group, kind, size) in enumerate(found.tolist()):
        own = calls.take(places[number])
        name = calls.words["kind"][kind] if kind >= 0 else "unknown"
        matched = own.take(own["matched"])
        clockfree = known_of(matched["transfer_clockfree_ns"])
        ranks = int(own["group_size"].max()) if (own["group_size"] > 0).any() else int(own["members"].max())
        transfer = float(np.median(clockfree)) if len(clockfree) else None
        sized = size != UNKNOWN and transfer is not None and transfer > 0 and ranks > 1
        rows.append(
            {
                "group": group_name(calls.words["group_id"][group]),
                "kind": name,
                "bytes": None if size == UNKNOWN else size,
                "count": len(np.unique(matched["call"])) + int((~own["matched"]).sum()),
                "group_size": ranks or None,
                "hosts": hosts.spanned(by_host, group_members(calls.words["group_id"][group])),
                "transfer_ms_p50": median_of(matched["transfer_ns"]),
                "transfer_clockfree_ms_p50": ms(transfer),
                "wait_ms_p50": median_of(matched["wait_ns"]),
                "duration_ms_p50": median_of(own["end"] - own["start"]),
                "busbw_GBs": round(size / transfer * bus_factor(name, ranks), 3) if sized and transfer else None,
                "of_ceiling": _of_ceiling(analysis, name, size, transfer),
                "matched": len(np.unique(matched["call"])),
                "unmatched": int((~own["matched"]).sum()),
            }
        )
    return sorted(rows, key=lambda row: -(row["duration_ms_p50"] or 0) * row["count"])


def _of_ceiling(analysis: Analysis, kind: str, size: int, transfer_ns: float | None) -> float | None:
    """Return how fast a collective is against what its node can do at its size; None where that is not known."""
    known = analysis.ceilings is not None and size != UNKNOWN and transfer_ns
    best = analysis.ceilings.time_us(kind, size) if known and analysis.ceilings else None
    return round(best * 1000 / transfer_ns, 4) if best and transfer_ns else None


def _stragglers(analysis: Analysis, confirmed: bool | None) -> Json:
    verdict = analysis.verdict
    finding = next((item for item in analysis.findings if item.id.startswith("straggler")), None)
    slowdown = None
    steps = analysis.analysed_steps
    if finding is not None and finding.recoverable_ms is not None:
        step_ms = float(steps["step_ns"].mean()) * 1e-6
        slowdown = round(step_ms / (step_ms - finding.recoverable_ms), 4)
    return {
        "verdict": verdict.verdict,
        "rank": verdict.rank,
        "cause": verdict.cause,
        "cause_share": verdict.cause_share,
        "lateness_ms": ms(verdict.lateness_ns),
        "steps_late": len(verdict.per_step),
        "steps_judged": verdict.steps_judged,
        "slowdown": slowdown,
        "confirmed_by_plain": confirmed,
        "reason": verdict.reason,
        "per_step": [
            {
                "step": item.step,
                "rank": item.rank,
                "lateness_ms": ms(item.lateness_ns),
                "cause": item.cause,
            }
            for item in verdict.per_step
        ],
    }
