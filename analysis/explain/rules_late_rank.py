"""Rules about a late rank, one for each cause of the verdict."""

from collections.abc import Callable

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.units import estimate_ms
from rankscope.analysis.explain.facts import Facts
from rankscope.analysis.explain.rule import WORKERS, Advice, Claim, Part, Profiler, Rule
from rankscope.analysis.job.late_rank import JobVerdict
from rankscope.analysis.measure.stragglers import Verdict, cause_of


def _straggler(cause: str) -> Callable[[Facts, Limits], Claim | None]:
    """Return the check for a rank that is late for this cause."""

    def check(facts: Facts, limits: Limits) -> Claim | None:
        if facts.job is not None and facts.job.verdict != "undetermined":
            return _without_profiler(facts.job, cause)
        verdict = facts.verdict
        if not verdict.per_step:
            return None
        ranks, costliest = _costly(verdict, limits)
        found, shares = verdict.cause, verdict.cause_share
        if verdict.rank == costliest:
            ranks = [costliest]
        elif verdict.rank is not None:  # the rank that is late most often costs less than a rank that was late once
            own = [item.excess_ns for item in verdict.per_step if item.rank in ranks]
            found, shares = cause_of({name: sum(excess[name] for excess in own) for name in own[0]}, limits.cause_share)
        if (found or "mixed") != cause:
            return None
        gain = sum(item.recoverable_ns for item in verdict.per_step if item.rank in ranks) / verdict.steps_judged
        evidence = {
            "verdict": verdict.verdict,
            "lateness_ms": estimate_ms(verdict.lateness_ns or 0),
            "cause_share": shares,
            "steps_late": len(verdict.per_step),
            "steps_judged": verdict.steps_judged,
        }
        return Claim(ranks=ranks, gain_ns=gain, evidence=evidence)

    return check


def _without_profiler(job: JobVerdict, cause: str) -> Claim | None:
    """Claim what the unprofiled steps show; they overrule the trace's verdict."""
    if job.rank is None or (job.cause or "mixed") != cause:
        return None
    evidence = {
        "window": job.window,
        "verdict": job.verdict,
        "lateness_ms": estimate_ms(job.lateness_ns or 0.0),
        "lateness_interval_ms": None if job.interval_ns is None else [estimate_ms(value) for value in job.interval_ns],
        "part": job.part,
        "steps_late": job.steps_late,
        "steps_judged": job.steps_judged,
        "chance": job.chance,
    }
    step_ms = None if job.step_ns is None else job.step_ns * 1e-6
    return Claim(ranks=[job.rank], gain_ns=job.gain_ns, evidence=evidence, place=job.part or "", step_ms=step_ms)


def _costly(verdict: Verdict, limits: Limits) -> tuple[list[int], int]:
    """Return the ranks whose lateness costs enough compared with the costliest rank, and the costliest rank."""
    costs: dict[int, int] = {}
    for item in verdict.per_step:
        costs[item.rank] = costs.get(item.rank, 0) + item.recoverable_ns
    least = limits.late_share * max(costs.values())
    return sorted(rank for rank, cost in costs.items() if cost >= least), max(costs, key=lambda rank: costs[rank])


def _late(cause: str, says: str, advice: Advice, part: Part | None = None, profiler_adds: Profiler = "no") -> Rule:
    return Rule(
        id=f"straggler_{cause}",
        says=says,
        based_on="the verdict (docs/metrics.md)",
        check=_straggler(cause),
        advice=advice,
        part=part,
        remains="others' work",
        profiler_adds=profiler_adds,
        late_rank=True,
        unprofiled=True,
    )


RULES = (
    _late(
        "compute",
        "a rank is late: it computes longer",
        Advice("this rank computes longer: compare its batches' sizes, clocks, temperature and neighbours"),
        "compute of a rank",
    ),
    _late(
        "data",
        "a rank is late: it waits for its loader",
        Advice(
            "this rank's loader is slower: look at its workers, its storage, its share of the CPU",
            (f"num_workers={WORKERS}",),
        ),
        "loader",
    ),
    _late(
        "host",
        "a rank is late: its host launches later",
        Advice(
            "this rank launches later: look at its CPU, at synchronising calls and at garbage collection (gc.freeze)"
        ),
        "launches",
        "own",
    ),
    _late(
        "copy",
        "a rank is late: its copies take longer",
        Advice(
            "this rank's copies take longer: look at pinning and at the path between its CPU and GPU",
            ("data.pin_memory=true",),
        ),
        "copies",
    ),
    _late(
        "earlier_comm",
        "a rank is late: collectives of another group hold it up",
        Advice("collectives of another group hold this rank up: see which group is slow"),
    ),
    _late(
        "mixed",
        "a rank is late, and no cause explains most of it",
        Advice("this rank is late for several reasons: see the shares"),
    ),
)
