"""What costs time, and what a fix would save: every rule on the analysed steps, corrected by the plain pass.

Input: a `Recording`, and what the plain pass says. Output: findings, the costliest first. Each rule is one `Rule` in
`rules_*.py`; the thresholds are in `core/limits.py`. docs/findings.md is made from both.
"""

from typing import TYPE_CHECKING

import msgspec

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.explain import (
    rules_comm,
    rules_device,
    rules_host,
    rules_late_rank,
    rules_loader,
    rules_pipeline,
    rules_sharded,
    rules_steps,
)
from rankscope.analysis.explain.facts import Facts
from rankscope.analysis.explain.finding import Finding, severity
from rankscope.analysis.explain.gain_limit import Room
from rankscope.analysis.explain.gather import facts_of
from rankscope.analysis.explain.rule import Rule
from rankscope.analysis.measure.recording import Recording
from rankscope.analysis.verify.without_profiler import Unprofiled

if TYPE_CHECKING:
    from rankscope.analysis.explain.mending import Mending

# Keys of `rankscope run` that work for a script too, and what the others are in a user's own code.
_OF_SCRIPTS = ("profile", "passes")
_IN_CODE = {
    "compile": "torch.compile",
    "data.non_blocking": "tensor.to(device, non_blocking=True)",
    "data.persistent_workers": "persistent_workers of DataLoader",
    "data.pin_memory": "pin_memory of DataLoader",
    "ddp.bucket_cap_mb": "bucket_cap_mb of DistributedDataParallel",
    "ddp.comm_hook": "register_comm_hook of DistributedDataParallel",
    "ddp.find_unused_parameters": "find_unused_parameters of DistributedDataParallel",
    "ddp.no_sync": "no_sync() of DistributedDataParallel",
    "num_workers": "num_workers of DataLoader",
    "optimizer.impl": "fused=True of the optimizer",
    "parallel.prefetch": "set_modules_to_forward_prefetch and set_modules_to_backward_prefetch of FSDP's modules",
    "parallel.reshard_after_forward": "reshard_after_forward=False of fully_shard",
    "precision": "torch.autocast",
}
RULES: tuple[Rule, ...] = (
    rules_steps.SLOW_STEPS,
    rules_device.THROTTLED,
    *rules_late_rank.RULES,
    *rules_loader.RULES,
    *rules_host.RULES,
    *rules_comm.RULES,
    *rules_pipeline.RULES,
    *rules_sharded.RULES,
    *rules_device.RULES,
    rules_steps.DISTORTS,  # last, because it says how far to trust the others
)
_BY_ID = {rule.id: rule for rule in RULES}


def rule_of(finding_id: str) -> Rule | None:
    """Return the rule of a finding; None for one of another version."""
    return _BY_ID.get(finding_id)


def explain(recording: Recording, without: Unprofiled) -> list[Finding]:
    """Return the findings over the analysed steps, the costliest first, without the time that profiling adds."""
    if not recording.ranks:
        return _untraced(recording, without)
    facts, limits = facts_of(recording, without), recording.options.limits
    room = Room.of(
        recording.analysed_steps, without.step_ms, gpu=facts.gpu, cpu=without.cpu, data_wait_ms=without.data_wait_ms
    )
    seen = facts.job is not None and facts.job.verdict != "undetermined"
    found = correct(find(facts, limits), without.step_ms, without.extra_ms, seen, limits, room)
    if not seen and without.step_ms is not None:
        found = unsure(found)
    if not facts.gpu and without.steps_vary_ms is not None:
        found = [_beyond_variation(item, without.steps_vary_ms) for item in found]
    mending = _mending(recording, without.step_ms, found)
    if mending is not None:
        found = limited(found, mending, seen, room, limits)
    found = with_shared_time(found, mending)
    if recording.run_dir is None:
        return [in_own_words(item, keys=()) for item in found]
    return [in_own_words(item, keys=_OF_SCRIPTS) for item in found] if without.script else found


def _untraced(recording: Recording, without: Unprofiled) -> list[Finding]:
    """Return what the unprofiled steps of a run without a trace show."""
    facts = Facts(
        steps=recording.step_table, verdict=recording.verdict, job=without.verdict, slow=without.slow,
        gpu=not without.on_cpu, cpu=without.cpu,
    )  # fmt: skip
    found = [rule.apply(facts, recording.options.limits) for rule in RULES if rule.unprofiled]
    known = [item if facts.gpu else _rough(item) for item in found if item is not None]
    return [in_own_words(item, keys=_OF_SCRIPTS) if without.script else item for item in known]


def find(facts: Facts, limits: Limits) -> list[Finding]:
    """Return the findings as the trace shows them, the costliest first."""
    if not len(facts.steps) or not facts.step_ns:  # nothing can be a share of steps without length
        return []
    found = [item for item in (rule.apply(facts, limits) for rule in RULES) if item is not None]
    return _ranked(found if facts.gpu else [_rough(item) for item in found])


def _rough(item: Finding) -> Finding:
    """Cap what a busy machine shows in a healthy job too.

    Low: communication, because on a CPU the ends of collectives are imprecise by milliseconds, and slow steps in which
    the ranks mostly waited for a core. Medium: a late rank that is not late in most steps, because ranks that share
    cores take turns at being late.
    """
    rule = _BY_ID[item.id]
    if rule.rough_on_cpu and item.severity != "low":
        return msgspec.structs.replace(item, severity="low", evidence=item.evidence | {"rough": "gloo on a CPU"})
    if (
        item.evidence.get("shared_cores")
        or (item.evidence.get("core_wait_share") or 0.0) >= rules_steps.BUSY_SLOW_STEPS
    ):
        return msgspec.structs.replace(item, severity="low")
    turns = rule.late_rank and item.evidence.get("verdict") != "persistent"
    if item.severity != "high" or not turns:
        return item
    return msgspec.structs.replace(item, severity="medium", evidence=item.evidence | {"rough": "gloo on a CPU"})


def _ranked(found: list[Finding]) -> list[Finding]:
    """Order by gain; unknown gains come after, the profiler's distortion last; among equals the late rank is first."""

    def key(item: Finding) -> tuple[bool, float, bool]:
        gain = 1.0 if item.recoverable_ms is None else -item.recoverable_ms
        return item.id == rules_steps.DISTORTS.id, gain, not _BY_ID[item.id].late_rank

    return sorted(found, key=key)


def correct(
    found: list[Finding],
    step_ms: float | None,
    extra_ms: float | None,
    seen: bool,
    limits: Limits,
    room: Room | None = None,
) -> list[Finding]:
    """Return the findings with gains that hold for the job without a profiler.

    `step_ms` is the step without a profiler, `extra_ms` what profiling adds to it (None: unknown), `seen` whether the
    late rank was found in steps without a profiler, `room` the most that a fix can save. The profiler slows the host,
    so its time is in the gaps between launches. It is subtracted from the findings about gaps in proportion. Without a
    plain pass the profiler's share is unknown, so a finding about the host is of medium severity at most.
    """
    result = []
    gaps = sum(item.recoverable_ms or 0.0 for item in found if _BY_ID[item.id].profiler_adds == "shared")
    for finding in found:
        rule = _BY_ID[finding.id]
        slowed = rule.profiler_adds != "no" and not (rule.late_rank and seen)
        if slowed and extra_ms is None and finding.recoverable_ms is not None:
            evidence = finding.evidence | {"under_the_profiler_only": True}
            capped = "medium" if finding.severity == "high" else finding.severity
            result.append(msgspec.structs.replace(finding, severity=capped, evidence=evidence))
        else:
            added = max(0.0, extra_ms or 0.0) if slowed else 0.0
            if rule.profiler_adds == "shared" and gaps:
                added *= (finding.recoverable_ms or 0.0) / gaps
            own = rule.late_rank and seen  # its gain is from the plain steps already
            kept = _corrected(finding, added, None if own else room, step_ms, limits)
            result += [] if kept is None else [kept]
    return _ranked(result)


def _corrected(
    finding: Finding, added_ms: float, room: Room | None, step_ms: float | None, limits: Limits
) -> Finding | None:
    """Subtract what the profiler added and what exceeds the room; None if the rest is too small to report."""
    gain = finding.recoverable_ms
    if gain is None:
        return finding
    rule = _BY_ID[finding.id]
    rare = finding.evidence.get("verdict") == "intermittent"  # the median plain step does not have the lateness
    at_most = None if room is None or rare or rule.beyond_usual else room.left(rule.remains, finding.ranks, rule.part)
    left = round(max(0.0, min(gain - added_ms, gain if at_most is None else at_most)), 4)
    if left >= gain:
        return finding
    share = left / step_ms if step_ms else 0.0
    if share < limits.reported and rule.drop_if_small:
        return None
    evidence = finding.evidence | {"traced_ms": gain}
    evidence |= {"added_by_profiler_ms": round(added_ms, 4)} if added_ms else {}
    evidence |= {} if at_most is None else {"at_most_ms": round(at_most, 4)}
    return msgspec.structs.replace(finding, recoverable_ms=left, evidence=evidence, severity=severity(share, limits))


def unsure(found: list[Finding]) -> list[Finding]:
    """Cap late ranks that no unprofiled step shows at medium: the profiler slows hosts unevenly."""
    return [
        msgspec.structs.replace(item, severity="medium", evidence=item.evidence | {"under_the_profiler_only": True})
        if _BY_ID[item.id].late_rank and item.severity == "high"
        else item
        for item in found
    ]


def _beyond_variation(item: Finding, steps_vary_ms: float) -> Finding:
    """Cap at low what is less than steps on a CPU vary by: no one would notice the fix. Late ranks have a test."""
    rule = _BY_ID[item.id]
    if item.severity == "low" or rule.late_rank or rule.beyond_usual or (item.recoverable_ms or 0.0) >= steps_vary_ms:
        return item
    evidence = item.evidence | {"steps_vary_ms": round(steps_vary_ms, 4)}
    return msgspec.structs.replace(item, severity="low", evidence=evidence)


def _mending(recording: Recording, plain_ms: float | None, found: list[Finding]) -> "Mending | None":
    """Return a replay of the steps; None if no plain step is known, or if no finding has a gain that it could tell."""
    if plain_ms is None or not any(item.recoverable_ms is not None and _BY_ID[item.id].mended for item in found):
        return None
    from rankscope.analysis.explain.mending import Mending  # most traces have no plain step, and need no replay

    return Mending.of(recording, plain_ms, _BY_ID)


def limited(found: list[Finding], mending: "Mending", seen: bool, room: Room | None, limits: Limits) -> list[Finding]:
    """Return the findings with gains that a replay limits. If the late rank was `seen`, plain steps say its gain."""
    known = [item if seen and _BY_ID[item.id].late_rank else mending.limited(item, room, limits) for item in found]
    return _ranked([item for item in known if item is not None])


def with_shared_time(found: list[Finding], mending: "Mending | None" = None) -> list[Finding]:
    """Name in each finding the costlier finding whose fix saves the same time.

    Without a replay of both, it is one that claims the same part of the step.
    """
    result: list[Finding] = []
    for item in found:
        costlier = (other.id for other in result if _same_time(item, other, mending))
        if item.recoverable_ms and (before := next(costlier, None)) is not None:
            item = msgspec.structs.replace(item, evidence=item.evidence | {"same_time_as": before})
        result.append(item)
    return result


def _same_time(item: Finding, costlier: Finding, mending: "Mending | None") -> bool:
    if not costlier.recoverable_ms:
        return False
    share = None if mending is None else mending.share_time(item, costlier)
    part = _BY_ID[item.id].part
    return share if share is not None else part is not None and part == _BY_ID[costlier.id].part


def in_own_words(item: Finding, keys: tuple[str, ...]) -> Finding:
    """Name what to change in a user's own code instead of overrides; overrides that begin with `keys` stay."""
    kept = [word for word in item.overrides if keys and word.startswith(keys)]
    own = [_IN_CODE[key] for word in item.overrides if (key := word.partition("=")[0]) in _IN_CODE]
    advice = f"{item.advice}; in your code: {', '.join(own)}" if own else item.advice
    return msgspec.structs.replace(item, overrides=kept, advice=advice)
