"""Rules about what the device does while it computes.

Kernels are classified by their names. That is an inference, so the evidence says `from: kernel names`. The gain of
tensor cores comes from measured ceilings.
"""

import statistics

import numpy as np

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.explain.facts import Facts
from rankscope.analysis.explain.rule import Advice, Claim, Rule


def _low_tensor_core_use(facts: Facts, limits: Limits) -> Claim | None:
    """Claim only what names of kernels show: a product whose name does not tell counts as one on tensor cores."""
    whole, matmul, tensor = facts.mean("kernel_ns"), facts.mean("matmul_ns"), facts.mean("tensor_ns")
    maybe = tensor + facts.mean("tensor_unknown_ns")
    if not whole or not matmul or matmul < limits.matmul_share * whole or maybe >= limits.tensor_share * matmul:
        return None
    major = None if facts.model is None else facts.model.compute_major
    if major is not None and major < _FIRST_TENSOR_CORES:
        return None
    gain = None
    if facts.ceilings is not None and facts.activity is not None:
        slow, fast = (facts.ceilings.matmul_TFLOPs.get(name) for name in ("fp32", "bf16"))
        if slow and fast and fast > slow:
            without = facts.activity["matmul_ns"] - facts.activity["tensor_ns"]
            gain = facts.gain((without * (1 - slow / fast)).astype("int64"))
    evidence = {
        "matmul_share": round(matmul / whole, 4),
        "tensor_core_share_of_matmul": round(tensor / matmul, 4),
        "from": "kernel names",
    }
    if facts.model is not None and facts.model.vendor != "nvidia":
        return Claim(gain_ns=gain, evidence=evidence, variant=facts.model.vendor)
    fp16 = major is not None and major < _FIRST_BF16
    return Claim(gain_ns=gain, evidence=evidence, variant="fp16" if fp16 else None)


def _memory_bound(facts: Facts, limits: Limits) -> Claim | None:
    share = _matmul_share(facts, limits)
    unknown = facts.mean("unknown_ns") / max(1.0, facts.mean("kernel_ns"))
    if share is None or 1 - share - unknown < limits.memory_bound_share:
        return None
    evidence = {"share_outside_matmul": round(1 - share - unknown, 4), "from": "kernel names"}
    return Claim(evidence=evidence)


def _compute_bound(facts: Facts, limits: Limits) -> Claim | None:
    share = _matmul_share(facts, limits)
    if share is None or share < limits.compute_bound_share:
        return None
    evidence = {"matmul_share": round(share, 4), "from": "kernel names"}
    return Claim(evidence=evidence)


def _throttled(facts: Facts, limits: Limits) -> Claim | None:
    """Claim lower clocks of a late rank if they explain its lateness.

    At a share f of the usual clock, what takes a time t takes at least f t at the usual one. If that explains less than
    `cause_share` of the lateness, the rank has more to compute: then it draws more power than those that wait for it.
    """
    verdict, clocks = facts.verdict, facts.clocks
    others = [state["clock_mhz"] for rank, state in clocks.items() if rank not in verdict.ranks]
    if verdict.cause != "compute" or not others or not verdict.steps_judged:
        return None
    usual = statistics.median(others)
    lost = {rank: 1 - clocks[rank]["clock_mhz"] / usual for rank in verdict.ranks if rank in clocks}
    compute = facts.per_rank(facts.steps["compute_ns"])
    costs = {rank: share * compute.get(rank, 0.0) for rank, share in lost.items()}
    unprofiled = 0.0 if facts.job is None or facts.job.rank not in lost else facts.job.lateness_ns or 0.0
    needed = limits.cause_share * max(verdict.lateness_ns or 0, unprofiled)
    slow = [rank for rank, share in lost.items() if share >= limits.clock_share and costs[rank] >= needed]
    if not slow:
        return None
    reasons = 0
    for rank in slow:
        reasons |= int(clocks[rank]["reasons"])
    evidence = {
        "clock_mhz": round(min(clocks[rank]["clock_mhz"] for rank in slow), 1),
        "others_clock_mhz": round(usual, 1),
        "reasons": [name for bit, name in REASONS.items() if reasons & bit],
    }
    gain = min(verdict.gain_ns(slow), max(costs[rank] for rank in slow))
    return Claim(ranks=slow, gain_ns=gain, evidence=evidence)


# The bits in nvml.h; an idle GPU (0x1) does not count as throttled.
REASONS = {
    0x2: "applications clocks setting",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clock setting",
}


def _matmul_share(facts: Facts, limits: Limits) -> float | None:
    """Return the share of matrix products in the compute time; None if the device is not busy enough."""
    whole = facts.mean("kernel_ns")
    exposed = np.maximum(0, facts.steps["exposed_comm_ns"])  # the rest of the step is compute and idle time
    busy = float(facts.steps["compute_ns"].sum()) / max(1.0, float((facts.steps["step_ns"] - exposed).sum()))
    return facts.mean("matmul_ns") / whole if whole and busy >= limits.busy_share else None


_FIRST_TENSOR_CORES, _FIRST_BF16 = 7, 8  # compute capability: V100 has fp16 only, A100 also bf16 and TF32
THROTTLED = Rule(
    id="throttled",
    says="a late rank's GPU runs at lower clocks than the others', and that explains its lateness",
    seen_in="late rank",
    based_on="NVML's samples",
    check=_throttled,
    advice=Advice("this rank's GPU runs at lower clocks: look at its power cap, its temperature and its neighbours"),
    part="compute of a rank",
    remains="others' work",
)
RULES = (
    Rule(
        id="low_tensor_core_use",
        says="matrix products without tensor cores",
        seen_in="kernels",
        based_on="names of kernels",
        check=_low_tensor_core_use,
        advice=Advice("matrix products run without tensor cores: bf16, or at least TF32", ("precision=bf16",)),
        variants={
            "fp16": Advice("matrix products run without tensor cores, which this device has for fp16 only: autocast"),
            "amd": Advice("matrix products run without matrix cores: bf16 or fp16", ("precision=bf16",)),
            "other": Advice("matrix products run without the device's units for them: a lower precision"),
        },
        remains="nothing",
    ),
    Rule(
        id="memory_bound",
        says="the device's memory sets the pace while it is busy",
        seen_in="kernels",
        based_on="share of matrix products in the time of kernels, by their names",
        check=_memory_bound,
        advice=Advice(
            "the device's memory sets the pace: fuse element-wise work (compilation, a fused optimizer), a larger "
            "batch",
            ("compile=default", "optimizer.impl=fused"),
        ),
        remains="nothing",
    ),
    Rule(
        id="compute_bound",
        says="matrix products set the pace while the device is busy",
        seen_in="kernels",
        based_on="share of matrix products in the time of kernels, by their names",
        check=_compute_bound,
        advice=Advice(
            "matrix products set the pace, as they should: only lower precision or less arithmetic makes it faster"
        ),
        remains="nothing",
    ),
)
