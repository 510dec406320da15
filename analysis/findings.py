"""What costs time, with what a fix would bring: every rule on the analysed steps, ranked by recoverable time.

Comes in: `Facts`. Goes out: findings. The rules are in `diagnose_*.py`, their thresholds in `limits.py`, the advice in
`advice.py`; docs/findings.md describes each.
"""

from collections.abc import Callable

import msgspec

from rankscope.analysis import diagnose_comm, diagnose_device, diagnose_host
from rankscope.analysis.advice import ADVICE
from rankscope.analysis.facts import Facts, Finding, severity
from rankscope.analysis.limits import Limits

RULES: tuple[Callable[[Facts, Limits], Finding | None], ...] = (
    diagnose_device.throttled,
    diagnose_comm.straggler,
    diagnose_host.data_stall,
    diagnose_host.first_batch,
    diagnose_host.host_gap,  # host_bound_launch where kernels are shorter than their launch
    diagnose_host.sync_in_loop,
    diagnose_host.copy_bound,
    diagnose_host.small_kernels,
    diagnose_host.memory_pressure,
    diagnose_comm.exposed_comm,
    diagnose_comm.no_overlap,
    diagnose_comm.large_last_bucket,
    diagnose_comm.small_buckets,
    diagnose_comm.sync_every_micro_step,
    diagnose_comm.unused_parameters_scan,
    diagnose_device.low_tensor_core_use,
    diagnose_device.memory_bound,
    diagnose_device.compute_bound,
)
_ROUGH_ON_A_CPU = ("exposed_comm", "no_overlap", "large_last_bucket", "small_buckets")
_OF_THE_HOST = ("host_gap", "host_bound_launch", "straggler_host")


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
    """Order by what a fix would bring; of equal ones the earlier rule first, those that cannot be told last."""
    return sorted(found, key=lambda item: -1.0 if item.recoverable_ms is None else item.recoverable_ms, reverse=True)


def without_profiler(
    found: list[Finding], step_ms: float | None, extra_ms: float | None, confirmed: bool | None, limits: Limits
) -> list[Finding]:
    """Take off what profiling itself added to a step (`extra_ms`, None when unknown) from what a fix would bring.

    `step_ms` is the step without it. The profiler slows the host: so that time lies in gaps between launches, and a
    rank that is late only because it is traced has nothing to fix. Without a plain pass nobody knows how much of the
    host's time is the profiler's own, so a finding about the host is then medium at most.
    """
    result = []
    for finding in found:
        gain = finding.recoverable_ms
        if finding.id.startswith("straggler") and confirmed is False:
            evidence = finding.evidence | {"confirmed_by_plain": False}
            changes = {"recoverable_ms": 0.0, "severity": "low", "evidence": evidence, "overrides": []}
            finding = msgspec.structs.replace(finding, **changes, advice=ADVICE["unconfirmed"][0])
        elif finding.id in _OF_THE_HOST and gain is not None and extra_ms is None:
            evidence = finding.evidence | {"under_the_profiler_only": True}
            capped = "medium" if finding.severity == "high" else finding.severity
            finding = msgspec.structs.replace(finding, severity=capped, evidence=evidence)
        elif finding.id == "straggler_host" and confirmed:
            pass  # the plain pass shows it in full
        elif finding.id in _OF_THE_HOST and gain is not None and extra_ms is not None:
            left = round(max(0.0, gain - max(0.0, extra_ms)), 4)
            share = left / step_ms if step_ms else 0.0
            if share < limits.reported and not finding.id.startswith("straggler"):
                continue
            evidence = finding.evidence | {"traced_ms": gain, "added_by_profiler_ms": round(extra_ms, 4)}
            changes = {"recoverable_ms": left, "evidence": evidence, "severity": severity(share, limits)}
            finding = msgspec.structs.replace(finding, **changes)
        result.append(finding)
    return _ranked(result)


def distorts(overhead: float | None, profiler: str, ranks: list[int], limits: Limits) -> Finding | None:
    """Return the finding that the traced step is no picture of the plain one."""
    if overhead is None or overhead <= limits.distorts:
        return None
    text, overrides = ADVICE["profiler_distorts"]
    return Finding(
        id="profiler_distorts",
        severity="low",
        ranks=ranks,
        recoverable_ms=0.0,
        evidence={"overhead": overhead, "profiler": profiler},
        advice=text,
        overrides=list(overrides),
    )
