"""`summary.json`, the contract for scripts and CI. Input: an `Analysis`. Output: plain JSON values."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.align.groups import group_members, group_name
from rankscope.analysis.core import group_by
from rankscope.analysis.core.collective_kinds import UNKNOWN_KIND
from rankscope.analysis.core.json import Json
from rankscope.analysis.core.notices import Notice
from rankscope.analysis.core.table import UNKNOWN
from rankscope.analysis.core.units import known_of, mean_of, median_of, ms, us
from rankscope.analysis.measure import devices, hosts
from rankscope.analysis.measure.breakdown import PARTS, totals
from rankscope.analysis.measure.dimensions import dimensions, names_by_group, sharded_layers
from rankscope.analysis.measure.late_group import late_group
from rankscope.analysis.measure.loader import loader_waits
from rankscope.analysis.measure.memory import memory_of
from rankscope.analysis.measure.pipeline_stages import Pipeline, pipelines
from rankscope.analysis.measure.step_metrics import summarise_rank
from rankscope.analysis.result import Analysis
from rankscope.analysis.show.report.job import what_was_run
from rankscope.analysis.show.summary_schema import (
    AlignmentSummary,
    CollectiveSummary,
    ErrorSummary,
    LateStep,
    RankSummary,
    StragglerSummary,
    Summary,
    TracedVerdict,
)
from rankscope.conf.contract import bus_factor
from rankscope.conf.version import VERSION

_REPORT = re.compile(r"\.(sqlite|nsys-rep|qdstrm)$")


def summarise(analysis: Analysis) -> Json:
    """Return `summary.json` as plain JSON values (docs/summary.schema.json)."""
    found: Json = msgspec.to_builtins(summary_of(analysis), str_keys=True)
    return found


def summary_of(analysis: Analysis) -> Summary:
    """Return the typed summary of a recording, or of a run without a traced pass."""
    staged = pipelines(analysis)
    return Summary(
        status=_status(analysis),
        run={name.lower(): text for name, text in what_was_run(analysis, {"world_size": analysis.world_size})},
        source=analysis.ranks[0].source if analysis.ranks else None,
        pass_name=analysis.pass_name,
        warnings=[notice.as_dict() for notice in analysis.notices],
        world_size=analysis.world_size,
        ranks=analysis.rank_numbers or analysis.without.ranks,
        missing_ranks=analysis.missing_ranks,
        steps=analysis.steps_analysed,
        alignment=_alignment(analysis) if analysis.ranks else None,
        per_rank=_per_rank(analysis),
        totals=[totals(data) | {"device": data.device, "complete": data.complete} for data in analysis.ranks],
        devices=devices.rows(analysis.ranks, analysis.steps_analysed),
        hosts=_hosts(analysis),
        collectives=_collectives(analysis),
        dimensions=dimensions(analysis),
        sharded_layers=sharded_layers(analysis),
        pipelines=staged,
        stragglers=_stragglers(analysis, staged),
        loader=loader_waits(analysis.ranks),
        memory=[] if analysis.run_dir is None else memory_of(analysis.run_dir),
        slow_steps=analysis.without.slow,
        findings=analysis.findings,
        throughput=analysis.without.throughput,
        profiler_overhead=analysis.without.overhead,
        profiler_overhead_interval={
            name: None if found is None else list(found) for name, found in analysis.without.overhead_interval.items()
        },
        agreement=analysis.agreement,
        versions=_versions(),
    )


def error_summary(message: str, notices: Sequence[Notice]) -> Json:
    """Return `summary.json` for an analysis that failed."""
    listed = [notice.as_dict() for notice in notices] or [{"kind": "error", "level": "error", "message": message}]
    found: Json = msgspec.to_builtins(
        ErrorSummary(source=_source_of(notices), warnings=listed, versions=_versions()), str_keys=True
    )
    return found


def _versions() -> dict[str, str]:
    return {"rankscope": VERSION}


def _source_of(notices: Sequence[Notice]) -> str:
    """Return which profiler wrote the files that gave no numbers, judged by their names."""
    return "nsys" if any(_REPORT.search(notice.file or "") for notice in notices) else "kineto"


def _status(analysis: Analysis) -> Any:
    levels = {notice.level for notice in analysis.notices}
    if analysis.missing_ranks or "partial" in levels:
        return "partial"
    return "ok_with_warnings" if "warning" in levels else "ok"


def _alignment(analysis: Analysis) -> AlignmentSummary:
    clock = analysis.alignment
    known = len(clock.residual_ns) > 0
    percentile = {f"p{q}": us(float(np.percentile(clock.residual_ns, q))) if known else None for q in (50, 95)}
    probes = {
        str(rank): {"offset_us": us(found.at(clock.origin + found.offset_ns)), "error_us": us(found.error_ns)}
        for rank, found in clock.probed.items()
    }
    return AlignmentSummary(
        method=clock.method,
        reference_rank=clock.reference_rank,
        offset_us={str(rank): us(offset) for rank, offset in clock.offset_ns.items()},
        drift_ppm={
            str(rank): round(clock.drift[rank] * 1e6, 3) if rank in clock.drift else None for rank in clock.offset_ns
        },
        residual_us=percentile,
        end_spread_us={"p50": us(float(np.median(clock.spread_ns))) if known else None},
        error_bound_us=None if clock.bound_ns is None else us(clock.bound_ns),
        feasible_width_us=None if clock.feasible_width_ns is None else us(clock.feasible_width_ns),
        causality_violations=clock.causality_violations,
        probes=probes or None,
        unaligned_ranks=sorted(clock.unaligned),
    )


def _per_rank(analysis: Analysis) -> list[Any]:
    table = analysis.analysed_steps
    rows = []
    places = group_by.positions(table["rank"])
    for data in analysis.ranks:
        if data.rank not in places:
            continue
        own = table.take(places[data.rank])
        sees = data.sees_communication or analysis.world_size == 1
        found = summarise_rank(own, on_device=data.mode == "device", sees_communication=sees)
        parts = {part: mean_of(own[f"{part}_ns"]) if sees or not part.startswith("exposed") else None for part in PARTS}
        rows.append(msgspec.convert({"rank": data.rank, **found, "breakdown_ms": parts}, RankSummary))
    return rows


def _hosts(analysis: Analysis) -> list[Json]:
    """Return a row per host if there are several; none if the ranks do not say where they ran."""
    bound, limits = analysis.alignment.bound_ns or 0, analysis.options.limits
    judged = analysis.steps_judged if analysis.verdict.verdict != "undetermined" else []
    return hosts.rows(analysis.ranks, analysis.calls, analysis.analysed_steps, judged, bound, limits)


def _collectives(analysis: Analysis) -> list[CollectiveSummary]:
    """Group the calls by process group, kind and size; the largest total first.

    Calls of a step with which a window opens wait for the ranks' profilers, and do not count.
    """
    calls = analysis.calls.take(~np.isin(analysis.calls["step"], analysis.steps_opening))
    by_host = hosts.hosts_of(analysis.ranks)
    keys = np.stack([calls["group_id"], calls["kind"], calls["bytes"]], axis=1).astype(np.int64)
    found, index = np.unique(keys, axis=0, return_inverse=True)
    places = group_by.positions(index.ravel())
    rows, named = [], names_by_group(analysis)
    for number, (group, kind, size) in enumerate(found.tolist()):
        own = calls.take(places[number])
        name = calls.words["kind"][kind] if kind >= 0 else UNKNOWN_KIND
        matched = own.take(own["matched"])
        clockfree = known_of(matched["transfer_clockfree_ns"])
        ranks = int(own["group_size"].max()) if (own["group_size"] > 0).any() else int(own["members"].max())
        transfer = float(np.median(clockfree)) if len(clockfree) else None
        sized = size != UNKNOWN and transfer is not None and transfer > 0 and ranks > 1
        rows.append(
            CollectiveSummary(
                group=group_name(calls.words["group_id"][group]),
                dimension=named[group],
                kind=name,
                bytes=None if size == UNKNOWN else size,
                count=len(np.unique(matched["call"])) + int((~own["matched"]).sum()),
                group_size=ranks or None,
                hosts=hosts.spanned(by_host, group_members(calls.words["group_id"][group])),
                transfer_ms_p50=median_of(matched["transfer_ns"]),
                transfer_clockfree_ms_p50=ms(transfer),
                wait_ms_p50=median_of(matched["wait_ns"]),
                duration_ms_p50=median_of(own["end"] - own["start"]),
                busbw_GBs=round(size / transfer * bus_factor(name, ranks), 3) if sized and transfer else None,
                of_ceiling=_of_ceiling(analysis, name, size, ranks, transfer),
                matched=len(np.unique(matched["call"])),
                unmatched=int((~own["matched"]).sum()),
            )
        )
    return sorted(rows, key=lambda row: -(row.duration_ms_p50 or 0) * row.count)


def _of_ceiling(analysis: Analysis, kind: str, size: int, ranks: int, transfer_ns: float | None) -> float | None:
    """Return the speed of a collective relative to the node's best at this size; None if unknown."""
    known = analysis.ceilings is not None and size != UNKNOWN and transfer_ns
    best = analysis.ceilings.time_us(kind, size, ranks) if known and analysis.ceilings else None
    return round(best * 1000 / transfer_ns, 4) if best and transfer_ns else None


def _stragglers(analysis: Analysis, staged: Sequence[Pipeline]) -> StragglerSummary:
    traced, job = _traced(analysis), analysis.without.verdict
    if job is None or job.verdict == "undetermined":
        named = {
            name: getattr(traced, name) for name in ("verdict", "rank", "ranks", "cause", "lateness_ms", "steps_late")
        }
        own = None if job is None or traced.rank is not None else job.reason
        return StragglerSummary(
            window="trace",
            **named,
            group=late_group(traced.ranks, analysis, staged),
            part=None,
            lateness_interval_ms=None,
            chance=None,
            steps_judged=traced.steps_judged,
            slowdown=_slowdown(analysis),
            reason=own or traced.reason,
            per_step=traced.per_step,
            traced=traced,
        )
    low, high = job.interval_ns or (None, None)
    ranks = [] if job.rank is None else [job.rank]
    return StragglerSummary(
        window="timed" if job.window == "timed" else "plain",
        verdict=job.verdict,
        rank=job.rank,
        ranks=ranks,
        group=late_group(ranks, analysis, staged),
        cause=job.cause,
        part=job.part,
        lateness_ms=ms(job.lateness_ns),
        lateness_interval_ms=None if low is None or high is None else [round(low * 1e-6, 6), round(high * 1e-6, 6)],
        chance=job.chance,
        steps_late=job.steps_late,
        steps_judged=job.steps_judged,
        slowdown=_slowdown(analysis),
        reason=job.reason,
        per_step=[
            LateStep(step=step, rank=rank, lateness_ms=ms(lateness), cause=job.cause if rank == job.rank else None)
            for step, rank, lateness in job.late_steps
        ],
        traced=traced,
    )


def _traced(analysis: Analysis) -> TracedVerdict:
    verdict = analysis.verdict
    late = [
        LateStep(step=item.step, rank=item.rank, lateness_ms=ms(item.lateness_ns), cause=item.cause)
        for item in verdict.per_step
    ]
    return TracedVerdict(
        verdict=verdict.verdict,
        rank=verdict.rank,
        ranks=verdict.ranks,
        cause=verdict.cause,
        cause_share=verdict.cause_share,
        lateness_ms=ms(verdict.lateness_ns),
        steps_late=verdict.steps_late,
        steps_judged=verdict.steps_judged,
        reason=verdict.reason,
        per_step=late,
    )


def _slowdown(analysis: Analysis) -> float | None:
    """Return the step over the step without its late rank (docs/metrics.md, "Slowdown"); None without a late rank."""
    gains = [item.recoverable_ms for item in analysis.findings if item.id.startswith("straggler")]
    if not gains or gains[0] is None:
        return None
    if analysis.without.step_ms is None and not len(analysis.analysed_steps):
        return None
    step_ms = analysis.without.step_ms or float(analysis.analysed_steps["step_ns"].mean()) * 1e-6
    return round(step_ms / (step_ms - gains[0]), 4) if gains[0] < step_ms else None
