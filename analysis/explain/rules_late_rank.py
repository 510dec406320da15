"""Rules about a late rank, one for each cause of the verdict."""

from collections.abc import Callable

import msgspec

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.units import estimate_ms
from rankscope.analysis.explain.facts import Facts
from rankscope.analysis.explain.rule import WORKERS, Advice, Claim, Mended, Part, Profiler, Rule
from rankscope.analysis.job.late_rank import JobVerdict
from rankscope.analysis.measure.stragglers import UNEXPLAINED, Verdict, cause_of

_SMALLEST = 0.05  # share of the lateness that is named


def _straggler(cause: str) -> Callable[[Facts, Limits], Claim | None]:
    """Return the check for a rank that is late for this cause."""

    def check(facts: Facts, limits: Limits) -> Claim | None:
        shared = {"relieved_share": share} if cause == "compute" and (share := facts.relieved_share()) < 1 else {}
        if facts.job is not None and facts.job.verdict != "undetermined":
            claim = _without_profiler(facts.job, cause, shared)
            return claim if claim is None or cause != "data" else _with_cores(claim, facts, limits)
        verdict = facts.verdict
        if not verdict.per_step:
            return None
        ranks = _costly(verdict, limits)
        found, shares = verdict.cause, verdict.cause_share
        if ranks != verdict.ranks:  # a rank that was late once may cost more than one that is late most often
            found, shares = _cause_over(verdict, ranks, limits)
        if (found or "mixed") != cause:
            return None
        evidence = {
            "verdict": verdict.verdict,
            "lateness_ms": estimate_ms(verdict.lateness_ns or 0),
            "cause_share": shares,
            "steps_late": verdict.steps_late,
            "steps_judged": verdict.steps_judged,
            **shared,
        }
        places = [_shares(shares)] if cause == "mixed" else []
        if len(ranks) > 1:
            one = max(verdict.gain_ns([rank]) for rank in ranks)
            evidence["mending_one_ms"] = estimate_ms(one)
            places.append(f"mending one of them alone brings at most {one * 1e-6:.2f} ms")
        gain = verdict.gain_ns(ranks) * shared.get("relieved_share", 1)
        return Claim(ranks=ranks, gain_ns=gain, evidence=evidence, place="; ".join(places))

    return check


def _shares(shares: dict[str, float]) -> str:
    """Say how much of the lateness each cause explains, the largest first."""
    listed = sorted(((share, name) for name, share in shares.items() if share >= _SMALLEST), reverse=True)
    return ", ".join(f"{name.replace('_', ' ')} {share:.0%}" for share, name in listed)


def _with_cores(claim: Claim, facts: Facts, limits: Limits) -> Claim:
    """Advise no workers if the loader computes, and no core is left for them."""
    share, spare = facts.loader_cpu or (0.0, 1)
    return msgspec.structs.replace(claim, overrides=[]) if not spare and share >= limits.busy_loader_share else claim


def _without_profiler(job: JobVerdict, cause: str, shared: dict[str, float]) -> Claim | None:
    """Claim what the unprofiled steps show; they overrule the trace's verdict. `shared` is added to the evidence."""
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
        **shared,
    }
    step_ms = None if job.step_ns is None else job.step_ns * 1e-6
    return Claim(ranks=[job.rank], gain_ns=job.gain_ns, evidence=evidence, place=job.part or "", step_ms=step_ms)


def _costly(verdict: Verdict, limits: Limits) -> list[int]:
    """Return the ranks to mend: those that the verdict names if they cost most, otherwise all that cost enough."""
    costs: dict[int, int] = {}
    for item in verdict.per_step:
        costs[item.rank] = costs.get(item.rank, 0) + item.recoverable_ns
    if max(costs, key=lambda rank: costs[rank]) in verdict.ranks:
        return verdict.ranks
    least = limits.late_share * max(costs.values())
    return sorted(rank for rank, cost in costs.items() if cost >= least)


def _cause_over(verdict: Verdict, ranks: list[int], limits: Limits) -> tuple[str, dict[str, float]]:
    """Return the cause over the late steps of these ranks, and the share of each cause."""
    own = [item for item in verdict.per_step if item.rank in ranks]
    excess = {name: sum(item.excess_ns[name] for item in own) for name in own[0].excess_ns}
    return cause_of(excess, limits.cause_share, sum(item.lateness_ns for item in own))


def _late(
    cause: str,
    says: str,
    advice: Advice,
    part: Part | None = None,
    works: tuple[str, ...] = (),
    profiler_adds: Profiler = "no",
) -> Rule:
    return Rule(
        id=f"straggler_{cause}",
        says=says,
        seen_in="late rank",
        based_on="the verdict (docs/metrics.md)",
        check=_straggler(cause),
        advice=advice,
        part=part,
        # The median of the others shortens a pause of the host only in proportion to all its work.
        mended=Mended(works=works, as_others=True, complete="host" not in works) if works else None,
        remains="others' work",
        profiler_adds=profiler_adds,
        late_rank=True,
        unprofiled=True,
    )


RULES = (
    _late(
        "compute",
        "ranks are late: they compute longer",
        Advice("late ranks compute longer: compare the sizes of their batches, clocks, temperatures and neighbours"),
        "compute of a rank",
        ("compute",),
    ),
    _late(
        "data",
        "ranks are late: they wait for their loaders",
        Advice(
            "the loaders of late ranks are slower: look at their workers, storage and share of the CPU",
            (f"num_workers={WORKERS}",),
        ),
        "loader",
        ("loader",),
    ),
    _late(
        "host",
        "ranks are late: their hosts launch later",
        Advice(
            "late ranks launch later: look at their CPUs, at synchronising calls and at garbage collection (gc.freeze)"
        ),
        "launches",
        ("host", "launch"),
        "own",
    ),
    _late(
        "copy",
        "ranks are late: their copies take longer",
        Advice(
            "the copies of late ranks take longer: look at pinning and at the path between CPU and GPU",
            ("data.pin_memory=true",),
        ),
        "copies",
        ("copy",),
    ),
    _late(
        "earlier_comm",
        "ranks are late: collectives of another group hold them up",
        Advice("collectives of another group hold the late ranks up: see which group is slow"),
    ),
    _late(
        "mixed",
        "ranks are late, and no cause explains most of it",
        Advice("late ranks are late for several reasons"),
    ),
    _late(
        UNEXPLAINED,
        "ranks are late, and what they do before explains less than two thirds of it",
        Advice("the trace does not show why: record more steps, or with more activities"),
    ),
)
