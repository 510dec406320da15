"""Rules about communication: stragglers, exposure, buckets, what DDP does beside. Facts in, a finding or None out."""

from typing import Any

import numpy as np

from rankscope.analysis.core.kinds import bus_factor
from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.analysis.explain.facts import Facts, Finding, finding, ms
from rankscope.analysis.explain.limits import Limits
from rankscope.analysis.explain.stragglers import Verdict, cause_of

_MB = 1e6
_USUAL_BUCKET = 25.0  # MiB, DDP's own default


def straggler(facts: Facts, limits: Limits) -> Finding | None:
    """A rank is late; see stragglers.py."""
    verdict = facts.verdict
    if not verdict.per_step:
        return None
    ranks, costliest = _costly(verdict, limits)
    cause, shares = verdict.cause, verdict.cause_share
    if verdict.rank == costliest:
        ranks = [costliest]
    elif verdict.rank is not None:  # late more often than any other, by less than one that was late once
        own = [item.excess_ns for item in verdict.per_step if item.rank in ranks]
        cause, shares = cause_of({name: sum(excess[name] for excess in own) for name in own[0]}, facts.cause_share)
    gain = sum(item.recoverable_ns for item in verdict.per_step if item.rank in ranks) / verdict.steps_judged
    evidence = {
        "verdict": verdict.verdict,
        "lateness_ms": ms(verdict.lateness_ns or 0),
        "cause_share": shares,
        "steps_late": len(verdict.per_step),
        "steps_judged": verdict.steps_judged,
    }
    name = f"straggler_{cause or 'mixed'}"
    return finding(name, facts, limits, ranks=ranks, gain_ns=gain, evidence=evidence)


def _costly(verdict: Verdict, limits: Limits) -> tuple[list[int], int]:
    """Return the ranks whose lateness costs something beside the costliest one's, and that one."""
    costs: dict[int, int] = {}
    for item in verdict.per_step:
        costs[item.rank] = costs.get(item.rank, 0) + item.recoverable_ns
    least = limits.late_share * max(costs.values())
    return sorted(rank for rank, cost in costs.items() if cost >= least), max(costs, key=lambda rank: costs[rank])


def exposed_comm(facts: Facts, limits: Limits) -> Finding | None:
    """Gradients move while nothing computes."""
    gain = _exposed(facts)
    if gain is None or gain < limits.reported * facts.step_ns:
        return None
    known = facts.steps["exposed_transfer_ns"] != UNKNOWN
    evidence: dict[str, Any] = {
        "exposed_transfer_ms": ms(gain),
        "comm_ms": ms(float(facts.steps["comm_ns"][known].mean())),
    }
    calls = facts.all_reduces()
    if calls is not None:
        evidence |= against_ceiling(facts, calls, limits)
    gloo = facts.config is not None and (facts.config.device == "cpu" or facts.config.backend == "gloo")
    overrides = ["ddp.comm_hook=fp16"] if gloo or not facts.gpu else None
    return finding("exposed_comm", facts, limits, gain_ns=gain, evidence=evidence, overrides=overrides)


def against_ceiling(facts: Facts, calls: Table, limits: Limits) -> dict[str, Any]:
    """Return how the largest group of all-reduces compares with what this node can do at its size."""
    sized = calls.take((calls["bytes"] > 0) & (calls["transfer_clockfree_ns"] > 0))
    if facts.ceilings is None or not len(sized):
        return {}
    sizes, total = np.unique(sized["bytes"], return_inverse=True)
    size = int(sizes[np.argmax(np.bincount(total, weights=sized["transfer_clockfree_ns"].astype(float)))])
    took = float(np.median(sized["transfer_clockfree_ns"][sized["bytes"] == size])) / 1000
    best, latency = facts.ceilings.time_us("allreduce", size), facts.ceilings.latency_us("allreduce")
    if best is None or latency is None:
        return {}
    ranks = int(sized["group_size"].max())
    return {
        "bytes": size,
        "busbw_GBs": round(size / took / 1000 * bus_factor("allreduce", ranks), 3),
        "ceiling_busbw_GBs": round(size / best / 1000 * bus_factor("allreduce", ranks), 3),
        "of_ceiling": round(best / took, 4),
        "bound_by": "latency" if best < limits.latency_factor * latency else "bandwidth",
    }


def no_overlap(facts: Facts, limits: Limits) -> Finding | None:
    """The backward pass hides next to nothing of the communication, which comes in one or two all-reduces."""
    gain, calls = _exposed(facts), facts.all_reduces()
    if gain is None or calls is None or gain < limits.no_overlap_share * facts.step_ns:
        return None
    comm, exposed = facts.steps["comm_ns"].sum(), facts.steps["exposed_comm_ns"].sum()
    overlap = round(1 - float(exposed) / float(comm), 6) if comm else 1.0
    per_step = len(calls) / facts.count
    if overlap >= limits.no_overlap_ratio or per_step > 2:
        return None
    evidence = {"overlap_ratio": round(overlap, 4), "all_reduces_per_step": round(per_step, 2)}
    override = _smaller_buckets(facts)
    moved = float(calls["bytes"][calls["bytes"] > 0].sum()) / facts.count
    if moved:  # the last bucket cannot be hidden, however small the others are
        gain *= max(0.0, 1 - float(override.rpartition("=")[2]) * 2**20 / moved)
    if not facts.gpu:
        return finding("no_overlap", facts, limits, evidence=evidence, overrides=[override], advice="no_overlap_cpu")
    return finding("no_overlap", facts, limits, gain_ns=gain, evidence=evidence, overrides=[override])


def large_last_bucket(facts: Facts, limits: Limits) -> Finding | None:
    """The all-reduce that comes last, and cannot be hidden, holds most of the gradients."""
    calls = facts.all_reduces()
    if calls is None or len(calls) / facts.count < 2:
        return None
    last, whole, exposed = 0, 0, []
    for step in np.unique(calls["step"]).tolist():
        own = calls.take((calls["step"] == step) & (calls["bytes"] > 0))
        if not len(own):
            return None
        last += int(own["bytes"][-1])
        whole += int(own["bytes"].sum())
        exposed.append(min(int(own["exposed_ns"][-1]), max(0, int(own["transfer_clockfree_ns"][-1]))))
    gain = float(np.mean(exposed))
    if last < limits.last_bucket_share * whole or gain < limits.no_overlap_share * facts.step_ns:
        return None
    evidence = {"last_bucket_share": round(last / whole, 4), "last_bucket_bytes": round(last / facts.count)}
    overrides = [_smaller_buckets(facts)]
    return finding("large_last_bucket", facts, limits, gain_ns=gain, evidence=evidence, overrides=overrides)


def small_buckets(facts: Facts, limits: Limits) -> Finding | None:
    """Many all-reduces so small that each costs its latency rather than its bytes."""
    calls = facts.all_reduces()
    if calls is None:
        return None
    per_step = len(calls) / facts.count
    sized = calls["bytes"][calls["bytes"] > 0]
    nominal = facts.config.ddp.bucket_cap_mb * 2**20 if facts.config is not None else None
    size = float(np.mean(sized)) if len(sized) else nominal  # gloo's records have no sizes
    if size is None or size >= limits.small_bucket_mb * _MB or per_step < limits.small_bucket_calls:
        return None
    transfer = calls["transfer_clockfree_ns"][calls["transfer_clockfree_ns"] > 0]
    latency = float(transfer.min()) if len(transfer) else 0.0
    if facts.ceilings is not None and (measured := facts.ceilings.latency_us("allreduce")):
        latency = measured * 1000
    fewer = max(1.0, per_step * size / (_USUAL_BUCKET * 2**20))
    gain = min((per_step - fewer) * latency, _exposed(facts) or 0.0)
    evidence = {
        "all_reduces_per_step": round(per_step, 2),
        "mean_bytes": round(size),
        "latency_us": round(latency / 1000, 2),
        "bytes_from": "trace" if len(sized) else "config",
    }
    return finding("small_buckets", facts, limits, gain_ns=gain, evidence=evidence)


def sync_every_micro_step(facts: Facts, limits: Limits) -> Finding | None:
    """Gradients are reduced in every micro-step of an accumulation."""
    config, calls = facts.config, facts.all_reduces()
    if config is None or config.gradient_accumulation == 1 or config.ddp.no_sync or calls is None:
        return None
    micro = config.gradient_accumulation
    gain = (_exposed(facts) or 0.0) * (1 - 1 / micro)
    evidence = {"micro_steps": micro, "all_reduces_per_step": round(len(calls) / facts.count, 2)}
    return finding("sync_every_micro_step", facts, limits, gain_ns=gain, evidence=evidence)


def unused_parameters_scan(facts: Facts, limits: Limits) -> Finding | None:
    """DDP looks for unused parameters: it reduces a map of them, of type int, in every step."""
    if facts.config is not None and not facts.config.ddp.find_unused_parameters:
        return None
    calls = facts.all_reduces()
    maps = None
    if calls is not None:
        integer = np.array([word == "Int" for word in calls.words["dtype"]] + [False])[calls["dtype"]]
        maps = calls.take(integer)
        maps = maps if len(np.unique(maps["step"])) == facts.count else None
    if maps is None and facts.config is None:
        return None
    exposed = None if maps is None else float(np.maximum(0, maps["exposed_ns"]).sum()) / facts.count
    evidence = {"map_all_reduces_per_step": None if maps is None else round(len(maps) / facts.count, 2)}
    # what the walk over the graph costs the host is not in a trace: only the map's exposed part is known
    return finding("unused_parameters_scan", facts, limits, gain_ns=exposed, evidence=evidence)


def _exposed(facts: Facts) -> float | None:
    known = facts.steps["exposed_transfer_ns"] != UNKNOWN
    return float(facts.steps["exposed_transfer_ns"][known].mean()) if known.any() else None


def _smaller_buckets(facts: Facts) -> str:
    """Return the usual size of buckets, or one below it where buckets have that size already."""
    cap = None if facts.config is None else facts.config.ddp.bucket_cap_mb
    return "ddp.bucket_cap_mb=25" if cap is None or cap > _USUAL_BUCKET else "ddp.bucket_cap_mb=1"
