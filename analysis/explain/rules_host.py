"""Rules about the host: copies, launches, waits for the device."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.units import estimate_ms
from rankscope.analysis.explain.facts import Facts
from rankscope.analysis.explain.removable import removable
from rankscope.analysis.explain.rule import Advice, Claim, Mended, Rule
from rankscope.analysis.explain.sync_places import costly_places, ddp_times_itself, first_place


def _copy_bound(facts: Facts, limits: Limits) -> Claim | None:
    evidence: dict[str, Any] = {}
    down, copies = facts.mean("d2h_ns"), facts.mean("h2d_ns") + facts.mean("d2h_ns")
    inside = facts.mean("on_device_ns")
    if copies:
        evidence["pageable_share"] = round(facts.mean("pageable_ns") / copies, 4)
        evidence["to_host_share"] = round(down / copies, 4)
    if inside:
        evidence["on_device_share"] = round(inside / (copies + inside), 4)
    variant = None
    if inside > copies:
        return removable(facts, limits, facts.steps["copy_ns"], "copy", evidence=evidence, variant="on_device")
    if down > copies / 2:
        variant = "to_host"
    elif copies and evidence["pageable_share"] < limits.pageable_share:
        variant = "pinned"
    return removable(facts, limits, facts.steps["copy_ns"], "copy", evidence=evidence, variant=variant)


def _gap(short_kernels: bool) -> Callable[[Facts, Limits], Claim | None]:
    """Return the check for gaps between launches: with kernels shorter than their launch, or for another reason."""

    def check(facts: Facts, limits: Limits) -> Claim | None:
        gaps = facts.steps["host_gap_ns"]
        if not facts.gpu or facts.activity is None:
            return None if short_kernels else _gap_on_cpu(facts, limits)
        kernel, launch = facts.mean("kernel_ns") / max(1.0, facts.mean("kernels")), facts.mean("launch_p50_ns")
        short = bool(launch) and 0 < kernel < launch
        if short_kernels and not short:
            return None
        gaps = np.maximum(0, gaps - facts.activity["sync_idle_ns"] - facts.activity["malloc_idle_ns"])
        pauses = np.maximum(0, facts.activity["long_idle_ns"] - facts.activity["sync_idle_ns"])
        pauses = np.minimum(gaps, pauses)  # no launch explains them
        if short:
            gaps = gaps - pauses if short_kernels else pauses
        evidence = {"kernel_mean_us": round(kernel / 1000, 2), "launch_us": round(launch / 1000, 2)}
        if facts.ceilings is not None and facts.ceilings.launch_us:
            evidence["ceiling_launch_us"] = facts.ceilings.launch_us
        variant = "ddp" if short_kernels and len(facts.ranks) > 1 else None
        if facts.model is not None and facts.model.vendor == "other":
            variant = "other"
        return removable(facts, limits, gaps, "host_gap", evidence=evidence, variant=variant)

    return check


def _gap_on_cpu(facts: Facts, limits: Limits) -> Claim | None:
    """Claim a gain only if unprofiled steps show that the thread sleeps: the profiler's own work is in the gaps too."""
    claim = removable(facts, limits, facts.steps["host_gap_ns"], "host_gap", variant="cpu")
    return claim if claim is None or facts.cpu is not None else msgspec.structs.replace(claim, gain_ns=None)


def _sync_in_loop(facts: Facts, limits: Limits) -> Claim | None:
    answers = facts.config is not None and facts.config.mode == "inference"  # waiting for each answer is intended
    if facts.activity is None or facts.syncs is None or answers:
        return None
    gain = facts.gain(facts.activity["sync_idle_ns"])
    if gain < limits.sync_share * facts.step_ns or not facts.activity["syncs"].any():
        return None
    ranks = [rank for rank, value in facts.per_rank(facts.activity["syncs"]).items() if value > 0]
    places = costly_places(facts)
    evidence = {
        "syncs_per_step": round(float(facts.activity["syncs"].mean()), 2),
        "idle_behind_ms": estimate_ms(float(facts.activity["sync_idle_ns"].mean())),
        "places": places,
    }
    if ddp_times_itself(places):
        return Claim(ranks=ranks, gain_ns=gain, evidence=evidence, variant="ddp")
    return Claim(
        ranks=ranks, gain_ns=gain, evidence=evidence, place=first_place(places, "window" if facts.stretch else "step")
    )


def _small_kernels(facts: Facts, limits: Limits) -> Claim | None:
    """Claim no gain: a trace does not show what fusing the kernels would save."""
    kernel, count = facts.mean("kernel_p50_ns"), facts.mean("kernels")
    if not 0 < kernel < limits.small_kernel_us * 1000 or count < limits.small_kernel_count:
        return None
    return Claim(evidence={"kernel_p50_us": round(kernel / 1000, 2), "kernels_per_step": round(count, 1)})


def _memory_pressure(facts: Facts, limits: Limits) -> Claim | None:
    if facts.activity is None or facts.mean("mallocs") < max(limits.mallocs, 1e-9):
        return None
    gain = facts.gain(facts.activity["malloc_idle_ns"])
    ranks = [rank for rank, value in facts.per_rank(facts.activity["mallocs"]).items() if value >= limits.mallocs]
    evidence = {"driver_allocations_per_step": round(facts.mean("mallocs"), 2)}
    return Claim(ranks=ranks, gain_ns=gain, evidence=evidence)


_LONGER_KERNELS = "kernels are shorter than the time to launch them: CUDA graphs, or a larger batch"

RULES = (
    Rule(
        id="host_bound_launch",
        says="kernels are shorter than their launch",
        seen_in="host_gap",
        based_on="host gap without pauses of the device longer than 1 ms and 20 launches; mean kernel against the "
        "median time from one launch to the next",
        check=_gap(short_kernels=True),
        advice=Advice(_LONGER_KERNELS, ("compile=reduce-overhead",)),
        variants={
            "ddp": Advice(
                _LONGER_KERNELS.replace(
                    "CUDA graphs",
                    "CUDA graphs (under DDP some releases of PyTorch crash with them: its issue 113809)",
                ),
                ("compile=reduce-overhead",),
            ),
            "other": Advice("kernels are shorter than the time to launch them: a larger batch, or compilation"),
        },
        part="launches",
        mended=Mended(works=("host", "launch")),
        profiler_adds="shared",
        drop_if_small=True,
    ),
    Rule(
        id="host_gap",
        says="the device waits for launches for another reason; on a CPU: Python between operators",
        seen_in="host_gap",
        based_on="host gap without the part caused by waits and allocations",
        check=_gap(short_kernels=False),
        advice=Advice(
            "the device waits for launches: a larger batch, compilation, or less Python in the loop",
            ("compile=reduce-overhead",),
        ),
        variants={
            "cpu": Advice("nothing computes while Python runs between operators: a larger batch, or compilation"),
            "other": Advice("the device waits for launches: a larger batch, compilation, or less Python in the loop"),
        },
        part="launches",
        mended=Mended(works=("host", "launch")),
        profiler_adds="shared",
        drop_if_small=True,
    ),
    Rule(
        id="sync_in_loop",
        says="the host waits for the device, and the device then has nothing to do",
        seen_in="host_gap",
        based_on="idle time between the end of a synchronising call and the next call that blocks, at most the time "
        "for which it blocked; the call, its operator and range, and with `profile.with_stack=true` your function",
        check=_sync_in_loop,
        advice=Advice("the host waits for the device inside the step: take these calls out of the loop"),
        variants={
            "ddp": Advice(
                "DDP reads its own timers in the first ten steps of a job, and waits for the device: record later "
                "steps",
                ("profile.wait=9",),
            )
        },
        profiler_adds="shared",
        mended=Mended(works=("sync",), exact=True, complete=False),
    ),
    Rule(
        id="copy_bound",
        says="the device waits for copies, to it or to the host",
        seen_in="copy",
        based_on="copy part of the step; share of copies from or to pageable memory, and to the host",
        check=_copy_bound,
        advice=Advice(
            "the device waits for copies: pinned memory and asynchronous copies",
            ("data.pin_memory=true", "data.non_blocking=true"),
        ),
        variants={
            "pinned": Advice(
                "the device waits for copies: pinned memory and asynchronous copies",
                ("data.non_blocking=true",),
            ),
            "on_device": Advice(
                "the device waits for its own copies and memsets: views instead of copies (contiguous, cat, clone), "
                "zero_grad(set_to_none=True)"
            ),
            "to_host": Advice(
                "the device waits for copies to the host inside the step: keep results on the device, or copy them "
                "less often"
            ),
        },
        part="copies",
        mended=Mended(works=("copy",)),
        drop_if_small=True,
    ),
    Rule(
        id="small_kernels",
        says="many short kernels",
        seen_in="kernels",
        based_on="median compute kernel and number per step",
        counts_steps=True,
        check=_small_kernels,
        advice=Advice(
            "many short kernels: fuse them (compilation, a fused optimizer), or a larger batch",
            ("compile=default", "optimizer.impl=fused"),
        ),
    ),
    Rule(
        id="memory_pressure",
        says="the allocator requests memory from the driver inside steps",
        seen_in="host_gap",
        based_on="cudaMalloc, cudaFree and the like; idle time inside them",
        counts_steps=True,
        check=_memory_pressure,
        advice=Advice(
            "the allocator requests memory from the driver inside the step: no empty_cache() in the loop, a smaller "
            "batch, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        ),
        drop_if_small=True,
    ),
)
