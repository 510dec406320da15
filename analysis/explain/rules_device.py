"""Rules about what the device does while it computes. Facts in, a finding or None out.

Kernels are told apart by their names, which is an inference and said so in the evidence; rates come from counted
FLOPs and measured ceilings where both are known.
"""

import statistics

import numpy as np

from rankscope.analysis.explain.facts import Facts, Finding, finding
from rankscope.analysis.explain.limits import Limits


def low_tensor_core_use(facts: Facts, limits: Limits) -> Finding | None:
    """Matrix products run without tensor cores."""
    whole, matmul, tensor = facts.mean("kernel_ns"), facts.mean("matmul_ns"), facts.mean("tensor_ns")
    if not whole or not matmul or matmul < limits.matmul_share * whole or tensor >= limits.tensor_share * matmul:
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
    return finding("low_tensor_core_use", facts, limits, gain_ns=gain, evidence=evidence)


def memory_bound(facts: Facts, limits: Limits) -> Finding | None:
    """Most of the computing time goes to kernels that are no matrix products: memory sets their pace."""
    share = _matmul_share(facts, limits)
    if share is None or 1 - share < limits.memory_bound_share:
        return None
    evidence = {"share_outside_matmul": round(1 - share, 4), "from": "kernel names"}
    return finding("memory_bound", facts, limits, evidence=evidence)


def compute_bound(facts: Facts, limits: Limits) -> Finding | None:
    """Most of the computing time goes to matrix products on tensor cores, or to the only units there are."""
    share = _matmul_share(facts, limits)
    if share is None or share < limits.compute_bound_share:
        return None
    evidence = {"matmul_share": round(share, 4), "from": "kernel names"}
    return finding("compute_bound", facts, limits, evidence=evidence)


def throttled(facts: Facts, limits: Limits) -> Finding | None:
    """A rank is late because it computes longer, and its GPU ran at lower clocks than the others'."""
    verdict = facts.verdict
    others = [state["clock_mhz"] for rank, state in facts.clocks.items() if rank != verdict.rank]
    if verdict.rank not in facts.clocks or verdict.cause != "compute" or not others or not verdict.steps_judged:
        return None
    own, usual = facts.clocks[verdict.rank], statistics.median(others)
    if own["clock_mhz"] > (1 - limits.clock_share) * usual:
        return None
    own_steps = [item for item in verdict.per_step if item.rank == verdict.rank]
    gain = sum(item.recoverable_ns for item in own_steps) / verdict.steps_judged
    evidence = {
        "clock_mhz": round(own["clock_mhz"], 1),
        "others_clock_mhz": round(usual, 1),
        "reasons": [name for bit, name in REASONS.items() if int(own["reasons"]) & bit],
    }
    return finding("throttled", facts, limits, ranks=[verdict.rank], gain_ns=gain, evidence=evidence)


# of nvml.h; an idle GPU is no reason
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
    """Return the share of matrix products in the computing time; None where the device is not busy enough."""
    whole = facts.mean("kernel_ns")
    exposed = np.maximum(0, facts.steps["exposed_comm_ns"])  # what is left of the step is the computing's and idle
    busy = float(facts.steps["compute_ns"].sum()) / max(1.0, float((facts.steps["step_ns"] - exposed).sum()))
    return facts.mean("matmul_ns") / whole if whole and busy >= limits.busy_share else None
