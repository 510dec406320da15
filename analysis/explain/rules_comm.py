"""Rules about communication: exposed transfers, buckets, DDP's own work."""

from typing import Any

import numpy as np

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.analysis.core.units import estimate_ms
from rankscope.analysis.explain.facts import OF_DIMENSION, Facts
from rankscope.analysis.explain.rule import Advice, Claim, Mended, Rule
from rankscope.conf.contract import bus_factor

_MB = 1e6
_REDUCTIONS = ("allreduce", "reducescatter", "reduce")
_USUAL_BUCKET = 25.0  # MiB, DDP's own default


def _exposed_comm(facts: Facts, limits: Limits) -> Claim | None:
    gain = _exposed(facts)
    if gain is None:
        return _unsplit(facts, limits)
    if gain < limits.reported * facts.step_ns:
        return None
    known = facts.steps["exposed_transfer_ns"] != UNKNOWN
    evidence: dict[str, Any] = {
        "exposed_transfer_ms": estimate_ms(gain),
        "comm_ms": estimate_ms(float(facts.steps["comm_ns"][known].mean())),
    }
    calls = facts.reductions()
    if calls is not None:
        evidence |= _against_ceiling(facts, calls, limits)
    kinds = facts.exposed_by_kind()
    half = sum(kinds.values()) / 2
    if sum(kinds.get(kind, 0.0) for kind in _REDUCTIONS) < half:
        costly = sorted((kind for kind in kinds if kinds[kind] > 0), key=lambda kind: -kinds[kind])[:3]
        evidence["exposed_by_kind_ms"] = {kind: estimate_ms(kinds[kind]) for kind in costly}
        within = sum(ns for kind, ns in kinds.items() if OF_DIMENSION in kind) >= half
        return Claim(
            gain_ns=gain if facts.gpu else None,
            evidence=evidence,
            variant="activations" if within else "other",
            overrides=[],
            place=", ".join(costly),
        )
    if not facts.gpu:
        return Claim(evidence=evidence, variant="cpu")
    gloo = facts.config is not None and facts.config.backend == "gloo"
    return Claim(gain_ns=gain, evidence=evidence, variant="gloo" if gloo else None)


def _exposed_gather(facts: Facts, limits: Limits) -> Claim | None:
    """Claim what hiding the all-gathers of FSDP would save."""
    gain = min(facts.exposed_by_kind().get("allgather", 0.0), _exposed(facts) or 0.0)
    if not facts.sharded() or not facts.gpu or gain < limits.reported * facts.step_ns:
        return None
    return Claim(gain_ns=gain, evidence={"exposed_gather_ms": estimate_ms(gain)})


def _unsplit(facts: Facts, limits: Limits) -> Claim | None:
    """Claim no gain if waits are unknown: nobody knows how much of the exposed communication is a wait for others."""
    exposed = float(facts.steps["exposed_comm_ns"].mean())
    if exposed < limits.reported * facts.step_ns:
        return None
    evidence = {"exposed_comm_ms": estimate_ms(exposed), "comm_ms": estimate_ms(float(facts.steps["comm_ns"].mean()))}
    return Claim(evidence=evidence, variant="unsplit", place=f"{exposed * 1e-6:.2f} ms")


def _against_ceiling(facts: Facts, calls: Table, limits: Limits) -> dict[str, Any]:
    """Return how the costliest reductions of one kind, size and group compare with the node's ceiling for them."""
    sized = calls.take((calls["bytes"] > 0) & (calls["transfer_clockfree_ns"] > 0))
    if facts.ceilings is None or not len(sized):
        return {}
    alike, of_alike = np.unique(
        np.stack([sized[name] for name in ("kind", "bytes", "group_size")]), axis=1, return_inverse=True
    )
    total = np.bincount(of_alike.ravel(), weights=sized["transfer_clockfree_ns"].astype(float))
    costliest = int(np.argmax(total))
    code, size, ranks = map(int, alike[:, costliest])
    kind = sized.words["kind"][code]
    took = float(np.median(sized["transfer_clockfree_ns"][of_alike.ravel() == costliest])) / 1000
    best, latency = facts.ceilings.time_us(kind, size, ranks), facts.ceilings.latency_us(kind, ranks)
    if best is None or latency is None:
        return {}
    return {
        "bytes": size,
        "busbw_GBs": round(size / took / 1000 * bus_factor(kind, ranks), 3),
        "ceiling_busbw_GBs": round(size / best / 1000 * bus_factor(kind, ranks), 3),
        "of_ceiling": round(best / took, 4),
        "bound_by": "latency" if best < limits.latency_factor * latency else "bandwidth",
    }


def _no_overlap(facts: Facts, limits: Limits) -> Claim | None:
    gain, calls = _exposed(facts), facts.reductions()
    if gain is None or calls is None or gain < limits.no_overlap_share * facts.step_ns:
        return None
    comm, exposed = facts.of_gradients()
    gain = min(gain, exposed / len(facts.steps))
    overlap = round(1 - exposed / comm, 6) if comm else 1.0
    per_step = len(calls) / facts.count
    if overlap >= limits.no_overlap_ratio or per_step > 2:
        return None
    evidence = {"overlap_ratio": round(overlap, 4), "collectives_per_step": round(per_step, 2)}
    if _sharded(calls):
        return Claim(gain_ns=None if not facts.gpu else gain, evidence=evidence, variant="sharded")
    override = _smaller_buckets(facts)
    moved = float(calls["bytes"][calls["bytes"] > 0].sum()) / facts.count
    if moved:  # the last bucket cannot be hidden, however small the others are
        gain *= max(0.0, 1 - float(override.rpartition("=")[2]) * 2**20 / moved)
    if not facts.gpu:
        return Claim(evidence=evidence, overrides=[override], variant="cpu")
    return Claim(gain_ns=gain, evidence=evidence, overrides=[override])


def _large_last_bucket(facts: Facts, limits: Limits) -> Claim | None:
    calls = facts.reductions()
    if calls is None or len(calls) / facts.count < 2:
        return None
    last, total, exposed = 0, 0, []
    for step in np.unique(calls["step"]).tolist():
        own = calls.take((calls["step"] == step) & (calls["bytes"] > 0))
        if not len(own):
            return None
        last += int(own["bytes"][-1])
        total += int(own["bytes"].sum())
        exposed.append(min(int(own["exposed_ns"][-1]), max(0, int(own["transfer_clockfree_ns"][-1]))))
    gain = float(np.mean(exposed))
    if last < limits.last_bucket_share * total or gain < limits.no_overlap_share * facts.step_ns:
        return None
    evidence = {"last_bucket_share": round(last / total, 4), "last_bucket_bytes": round(last / facts.count)}
    gain_or_unknown = gain if facts.gpu else None
    if _sharded(calls):
        return Claim(gain_ns=gain_or_unknown, evidence=evidence, variant="sharded")
    variant = None if facts.gpu else "cpu"
    return Claim(gain_ns=gain_or_unknown, evidence=evidence, overrides=[_smaller_buckets(facts)], variant=variant)


def _small_buckets(facts: Facts, limits: Limits) -> Claim | None:
    calls = facts.reductions()
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
    kind = calls.texts("kind")[0] or "allreduce"
    ranks = int(calls["group_size"].max())
    if facts.ceilings is not None and (measured := facts.ceilings.latency_us(kind, ranks)):
        latency = measured * 1000
    fewer = max(1.0, per_step * size / (_USUAL_BUCKET * 2**20))
    gain = min((per_step - fewer) * latency, _exposed(facts) or 0.0)
    evidence = {
        "collectives_per_step": round(per_step, 2),
        "mean_bytes": round(size),
        "latency_us": round(latency / 1000, 2),
        "bytes_from": "trace" if len(sized) else "config",
    }
    return Claim(gain_ns=gain, evidence=evidence, variant="sharded" if _sharded(calls) else None)


def _sync_every_micro_step(facts: Facts, _: Limits) -> Claim | None:
    config, calls = facts.config, facts.reductions()
    if config is None or config.gradient_accumulation == 1 or config.ddp.no_sync or calls is None:
        return None
    micro = config.gradient_accumulation
    saved = 0  # what reductions of all micro-steps but the last expose
    for step in np.unique(calls["step"]).tolist():
        own = calls.take(calls["step"] == step)
        early = own.take(np.arange(len(own) - -(-len(own) // micro)))
        saved += int(
            np.minimum(np.maximum(0, early["exposed_ns"]), np.maximum(0, early["transfer_clockfree_ns"])).sum()
        )
    gain = min(saved / facts.count, _exposed(facts) or 0.0)
    evidence = {"micro_steps": micro, "collectives_per_step": round(len(calls) / facts.count, 2)}
    return Claim(gain_ns=gain, evidence=evidence)


def _unused_parameters_scan(facts: Facts, _: Limits) -> Claim | None:
    """DDP reduces a map of unused parameters, of type int, in every step."""
    if facts.config is not None and not facts.config.ddp.find_unused_parameters:
        return None
    calls = facts.reductions()
    maps = None
    if calls is not None:
        maps = calls.take(calls.where("dtype", lambda word: word == "Int"))
        maps = maps if len(np.unique(maps["step"])) == facts.count else None
    if maps is None and facts.config is None:
        return None
    exposed = None if maps is None else float(np.maximum(0, maps["exposed_ns"]).sum()) / facts.count
    evidence = {"map_all_reduces_per_step": None if maps is None else round(len(maps) / facts.count, 2)}
    # The host's cost of walking the graph is not in a trace: only the exposed part of the map's all-reduce is known.
    return Claim(gain_ns=exposed, evidence=evidence)


def _exposed(facts: Facts) -> float | None:
    known = facts.steps["exposed_transfer_ns"] != UNKNOWN
    return float(facts.steps["exposed_transfer_ns"][known].mean()) if known.any() else None


def _sharded(calls: Table) -> bool:
    """Return whether gradients are reduced by reduce-scatters: the job shards its parameters, and has no buckets."""
    return "reducescatter" in calls.texts("kind")


def _smaller_buckets(facts: Facts) -> str:
    """Return the override to the usual size of buckets, or to a smaller one if they already have that size."""
    cap = None if facts.config is None else facts.config.ddp.bucket_cap_mb
    return "ddp.bucket_cap_mb=25" if cap is None or cap > _USUAL_BUCKET else "ddp.bucket_cap_mb=1"


RULES = (
    Rule(
        id="exposed_comm",
        says="gradients or activations move while nothing computes",
        seen_in="exposed_transfer",
        based_on="exposed transfer; against the node's ceiling: bound by bandwidth or by latency",
        check=_exposed_comm,
        advice=Advice(
            "gradients are reduced while nothing computes: a larger batch, gradient accumulation, or compressed "
            "gradients",
            ("ddp.comm_hook=bf16",),
        ),
        variants={
            "unsplit": Advice(
                "nothing computes during communication and waits for other ranks, which cannot be told apart here"
            ),
            "other": Advice(
                "transfers that are not reductions of gradients run while nothing computes: launch them earlier, or "
                "give the device other work meanwhile"
            ),
            "activations": Advice(
                "ranks exchange activations within the model, and nothing computes meanwhile, as this parallelism has "
                "it: fewer ranks in these groups, faster links between them, or pieces that are sent while the next "
                "one computes"
            ),
            "cpu": Advice(
                "gradients are reduced while nothing computes; hiding it on a CPU may save or cost time, because an "
                "all-reduce uses the cores that compute: a larger batch, gradient accumulation, or compressed gradients"
            ),
            "gloo": Advice(
                "gradients are reduced while nothing computes: a larger batch, gradient accumulation, or compressed "
                "gradients",
                ("ddp.comm_hook=fp16",),
            ),
        },
        part="communication",
        mended=Mended(works=("transfer",)),
        remains="compute",
        rough_on_cpu=True,
    ),
    Rule(
        id="exposed_gather",
        says="FSDP gathers parameters while nothing computes",
        seen_in="exposed_transfer",
        based_on="exposed transfer of the all-gathers that FSDP launched",
        check=_exposed_gather,
        advice=Advice(
            "FSDP gathers parameters while nothing computes: prefetch more layers (`set_modules_to_forward_prefetch`, "
            "`set_modules_to_backward_prefetch`), a larger batch, or, if the memory allows it, "
            "`reshard_after_forward=False`"
        ),
        part="communication",
        mended=Mended(works=("transfer",)),
        remains="compute",
    ),
    Rule(
        id="no_overlap",
        says="almost no communication is hidden, and gradients are reduced in one or two collectives",
        seen_in="exposed_transfer",
        based_on="overlap ratio",
        counts_steps=True,
        check=_no_overlap,
        advice=Advice(
            "gradients are reduced only after the backward pass: smaller buckets let the first ones start earlier",
            ("ddp.bucket_cap_mb=25",),
        ),
        variants={
            "sharded": Advice(
                "gradients are reduced only after the backward pass: shard the model in more units, so that the first "
                "ones start earlier"
            ),
            "cpu": Advice(
                "gradients are reduced only after the backward pass; hiding it on a CPU may save or cost time, because "
                "an all-reduce uses the cores that compute",
                ("ddp.bucket_cap_mb=25",),
            ),
        },
        part="communication",
        mended=Mended(works=("transfer",)),
        remains="compute",
        rough_on_cpu=True,
    ),
    Rule(
        id="large_last_bucket",
        says="the last reduction of gradients, which nothing can hide, holds most of the bytes",
        seen_in="exposed_transfer",
        based_on="sizes in order of start",
        counts_steps=True,
        check=_large_last_bucket,
        advice=Advice(
            "the last bucket holds most of the gradients, and nothing hides it: smaller buckets",
            ("ddp.bucket_cap_mb=25",),
        ),
        variants={
            "cpu": Advice(
                "the last bucket holds most of the gradients, and nothing hides it; smaller buckets on a CPU may save "
                "or cost time, because an all-reduce uses the cores that compute",
                ("ddp.bucket_cap_mb=25",),
            ),
            "sharded": Advice("the last unit holds most of the gradients, and nothing hides it: use smaller units"),
        },
        part="communication",
        mended=Mended(works=("transfer",)),
        remains="compute",
        rough_on_cpu=True,
    ),
    Rule(
        id="small_buckets",
        says="many small all-reduces or reduce-scatters",
        seen_in="collectives",
        based_on="mean size (gloo's records have none: then `ddp.bucket_cap_mb`), calls per step",
        counts_steps=True,
        check=_small_buckets,
        advice=Advice("many small all-reduces, each with its own latency: larger buckets", ("ddp.bucket_cap_mb=25",)),
        variants={
            "sharded": Advice("many small reduce-scatters, each with its own latency: shard the model in larger units")
        },
        part="communication",
        mended=Mended(works=("transfer",)),
        remains="compute",
        rough_on_cpu=True,
    ),
    Rule(
        id="sync_every_micro_step",
        says="accumulation without `no_sync`",
        seen_in="collectives",
        based_on="the run's settings",
        counts_steps=True,
        check=_sync_every_micro_step,
        advice=Advice(
            "gradients are reduced in every micro-step: only the last needs it (no_sync)", ("ddp.no_sync=true",)
        ),
        part="communication",
        remains="compute",
    ),
    Rule(
        id="unused_parameters_scan",
        says="DDP looks for unused parameters",
        seen_in="collectives",
        based_on="the run's settings; in foreign traces an all-reduce of integers in every step",
        counts_steps=True,
        check=_unused_parameters_scan,
        advice=Advice(
            "DDP walks the graph for unused parameters in every step: turn it off if every parameter is used",
            ("ddp.find_unused_parameters=false",),
        ),
        part="communication",
        remains="compute",
    ),
)
