"""What costs time, with what a fix would bring: every rule on the analysed steps, ranked by recoverable time.

Comes in: `Facts`. Goes out: findings. The rules are in `diagnose_*.py`, their thresholds in `limits.py`, the advice in
`advice.py`; docs/findings.md describes each.
"""

from collections.abc import Callable

import msgspec

from rankscope.analysis.explain import rules_comm, rules_device, rules_host
from rankscope.analysis.explain.advice import ADVICE, WORKERS
from rankscope.analysis.explain.facts import Facts, Finding, severity
from rankscope.analysis.explain.gain_limit import Room
from rankscope.analysis.explain.limits import Limits

RULES: tuple[Callable[[Facts, Limits], Finding | None], ...] = (
    rules_device.throttled,
    rules_comm.straggler,
    rules_host.data_stall,
    rules_host.first_batch,
    rules_host.host_gap,  # host_bound_launch where kernels are shorter than their launch
    rules_host.sync_in_loop,
    rules_host.copy_bound,
    rules_host.small_kernels,
    rules_host.memory_pressure,
    rules_comm.exposed_comm,
    rules_comm.no_overlap,
    rules_comm.large_last_bucket,
    rules_comm.small_buckets,
    rules_comm.sync_every_micro_step,
    rules_comm.unused_parameters_scan,
    rules_device.low_tensor_core_use,
    rules_device.memory_bound,
    rules_device.compute_bound,
)
_ROUGH_ON_A_CPU = ("exposed_comm", "no_overlap", "large_last_bucket", "small_buckets")
_SAME_TIME = (
    ("data_stall", "first_batch", "straggler_data"),
    ("copy_bound", "straggler_copy"),
    ("throttled", "straggler_compute"),
    ("host_gap", "host_bound_launch", "straggler_host"),
    (
        "exposed_comm",
        "no_overlap",
        "large_last_bucket",
        "small_buckets",
        "sync_every_micro_step",
        "unused_parameters_scan",
    ),
)
_GAPS = ("host_gap", "host_bound_launch", "sync_in_loop")
_OF_THE_HOST = (*_GAPS, "straggler_host")
_IDLE = ("host_gap", "host_bound_launch", "data_stall", "first_batch", "copy_bound", "memory_pressure")


def find(facts: Facts, limits: Limits) -> list[Finding]:
    """Return the findings over the analysed steps, the costliest first."""
    if not len(facts.steps):
        return []
    found = [item for item in (rule(facts, limits) for rule in RULES) if item is not None]
    return _ranked(found if facts.gpu else [_rough(item) for item in found])


def _rough(item: Finding) -> Finding:
    """On a CPU the ends of collectives are loose by milliseconds, and ranks that share cores take turns at being late.

    What either costs is never called high there.
    """
    turns = item.id.startswith("straggler") and item.evidence.get("verdict") != "persistent"
    if item.severity != "high" or not (turns or item.id in _ROUGH_ON_A_CPU):
        return item
    return msgspec.structs.replace(item, severity="medium", evidence=item.evidence | {"rough": "gloo on a CPU"})


def _ranked(found: list[Finding]) -> list[Finding]:
    """Order by what a fix would bring, those that cannot be told last; of equal ones the late rank, then the others."""
    return sorted(
        found,
        key=lambda item: (1.0 if item.recoverable_ms is None else -item.recoverable_ms, item.id[:9] != "straggler"),
    )


def without_profiler(
    found: list[Finding],
    step_ms: float | None,
    extra_ms: float | None,
    confirmed: bool | None,
    limits: Limits,
    room: Room | None = None,
) -> list[Finding]:
    """Correct what a fix would bring by what the plain pass says.

    `step_ms` is the step without a profiler, `extra_ms` what profiling adds to it (None when unknown), `room` what a
    fix can bring at most. The profiler slows the host: so its time lies in gaps between launches, from whose findings
    it is taken off in proportion, and a rank that is late only because it is traced has nothing to fix. Without a
    plain pass nobody knows how much of the host's time is the profiler's own, so a finding about the host is then
    medium at most.
    """
    result = []
    gaps = sum(item.recoverable_ms or 0.0 for item in found if item.id in _GAPS)
    for finding in found:
        if finding.id.startswith("straggler") and confirmed is False:
            evidence = finding.evidence | {"confirmed_by_plain": False}
            changes = {"recoverable_ms": 0.0, "severity": "low", "evidence": evidence, "overrides": []}
            result.append(msgspec.structs.replace(finding, **changes, advice=ADVICE["unconfirmed"][0]))
        elif finding.id in _OF_THE_HOST and extra_ms is None and finding.recoverable_ms is not None:
            evidence = finding.evidence | {"under_the_profiler_only": True}
            capped = "medium" if finding.severity == "high" else finding.severity
            result.append(msgspec.structs.replace(finding, severity=capped, evidence=evidence))
        else:
            added = max(0.0, extra_ms or 0.0) if finding.id in _OF_THE_HOST else 0.0
            if finding.id in _GAPS and gaps:
                added *= (finding.recoverable_ms or 0.0) / gaps
            if finding.id.startswith("straggler") and confirmed:
                added = 0.0  # the plain pass shows it in full
            kept = _corrected(finding, added, room, step_ms, limits)
            result += [] if kept is None else [kept]
    return _ranked(result)


def _corrected(
    finding: Finding, added_ms: float, room: Room | None, step_ms: float | None, limits: Limits
) -> Finding | None:
    """Take off what the profiler added, and what is beyond the room; None for what is then too small to report."""
    gain = finding.recoverable_ms
    if gain is None:
        return finding
    rare = finding.evidence.get("verdict") == "intermittent"  # the median plain step is one without it
    at_most = None if room is None or rare else room.for_finding(finding.id, finding.ranks)
    left = round(max(0.0, min(gain - added_ms, gain if at_most is None else at_most)), 4)
    if left >= gain:
        return finding
    share = left / step_ms if step_ms else 0.0
    if share < limits.reported and finding.id in _IDLE:
        return None
    evidence = finding.evidence | {"traced_ms": gain}
    evidence |= {"added_by_profiler_ms": round(added_ms, 4)} if added_ms else {}
    evidence |= {} if at_most is None else {"at_most_ms": round(at_most, 4)}
    return msgspec.structs.replace(finding, recoverable_ms=left, evidence=evidence, severity=severity(share, limits))


def unsure(found: list[Finding]) -> list[Finding]:
    """On a CPU a rank may be late in one pass because something else used its core: of medium severity at most.

    That is what is left to say of a straggler that the plain pass does not show.
    """
    return [
        msgspec.structs.replace(item, severity="medium", evidence=item.evidence | {"confirmed_by_plain": None})
        if item.id.startswith("straggler") and item.severity == "high"
        else item
        for item in found
    ]


def with_shared_time(found: list[Finding]) -> list[Finding]:
    """Say of a finding which costlier one, further up, holds the same time: a fix brings it once."""
    result: list[Finding] = []
    for item in found:
        group = next((names for names in _SAME_TIME if item.id in names), ())
        before = next((other.id for other in result if other.id in group and other.recoverable_ms), None)
        if before is not None and item.recoverable_ms:
            item = msgspec.structs.replace(item, evidence=item.evidence | {"same_time_as": before})
        result.append(item)
    return result


def with_loader_on_cpu(found: list[Finding], share: float, spare: int, limits: Limits) -> list[Finding]:
    """Say of a wait for batches how much of it the loader computes, and which workers there are cores for.

    `share` and `spare` are those of `loader.on_cpu`. A loader that sleeps needs no cores.
    """
    return [_of_loader(item, share, spare, limits) if item.id == "data_stall" else item for item in found]


def _of_loader(item: Finding, share: float, spare: int, limits: Limits) -> Finding:
    evidence = item.evidence | {"loader_cpu_share": round(share, 4), "spare_cores_per_rank": spare}
    if share < limits.busy_loader_share:
        return msgspec.structs.replace(item, evidence=evidence, advice=ADVICE["data_stall_idle"][0])
    text, _ = ADVICE["data_stall_busy" if spare else "data_stall_no_cores"]
    overrides = [f"num_workers={min(WORKERS, spare)}"] if spare else []
    return msgspec.structs.replace(item, evidence=evidence, advice=text, overrides=overrides)


def distorts(
    overhead: float | None, profiler: str, ranks: list[int], limits: Limits, advice: str = "profiler_distorts"
) -> Finding | None:
    """Return the finding that the traced step is no picture of the plain one."""
    if overhead is None or overhead <= limits.distorts:
        return None
    text, overrides = ADVICE[advice]
    return Finding(
        id="profiler_distorts",
        severity="low",
        ranks=ranks,
        recoverable_ms=0.0,
        evidence={"overhead": overhead, "profiler": profiler},
        advice=text,
        overrides=list(overrides),
    )
