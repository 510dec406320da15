"""Rules about the host: the loader, copies, launches, waits for the device. Facts in, a finding or None out."""

from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.explain.advice import WORKERS
from rankscope.analysis.explain.facts import Facts, Finding, finding, ms
from rankscope.analysis.explain.limits import Limits

_SHOWN_PLACES = 3
_PLACE = ("call", "operator", "range", "function")


def data_stall(facts: Facts, limits: Limits) -> Finding | None:
    """The device waits for batches."""
    workers = 0 if facts.config is None else facts.config.num_workers
    overrides = [f"num_workers={2 * workers}"] if workers >= WORKERS else None  # who has as many as advised
    return _removable("data_stall", "data_stall_ns", facts, limits, overrides=overrides)


def first_batch(facts: Facts, limits: Limits) -> Finding | None:
    """The loader's workers start again inside the window: its cost, spread over the recorded steps."""
    restarts = {row["rank"]: row["epoch_restart_ms"] for row in facts.loader if row["epoch_restart_ms"]}
    if not restarts:
        return None
    gain = max(restarts.values()) * 1e6 / facts.count
    if gain < limits.reported * facts.step_ns:
        return None
    evidence = {"epoch_restart_ms": {str(rank): value for rank, value in restarts.items()}, "steps": facts.count}
    return finding("first_batch", facts, limits, ranks=sorted(restarts), gain_ns=gain, evidence=evidence)


def copy_bound(facts: Facts, limits: Limits) -> Finding | None:
    """The device waits for copies."""
    evidence: dict[str, Any] = {}
    down, copies = facts.mean("d2h_ns"), facts.mean("h2d_ns") + facts.mean("d2h_ns")
    if copies:
        evidence["pageable_share"] = round(facts.mean("pageable_ns") / copies, 4)
        evidence["to_host_share"] = round(down / copies, 4)
    overrides, advice = None, None
    if down > copies / 2:
        overrides, advice = [], "copy_bound_to_host"
    elif copies and evidence["pageable_share"] < limits.pageable_share:
        overrides = ["data.non_blocking=true"]
    return _removable(
        "copy_bound", "copy_ns", facts, limits, column="copy", evidence=evidence, overrides=overrides, advice=advice
    )


def host_gap(facts: Facts, limits: Limits) -> Finding | None:
    """The device waits for launches: kernels shorter than their launch, or another reason on the host."""
    gaps = facts.steps["host_gap_ns"]
    if not facts.gpu or facts.activity is None:
        return _removable("host_gap", "host_gap_ns", facts, limits, advice="host_gap_cpu")
    gaps = np.maximum(0, gaps - facts.activity["sync_idle_ns"] - facts.activity["malloc_idle_ns"])
    kernel, launch = facts.mean("kernel_ns") / max(1.0, facts.mean("kernels")), facts.mean("launch_p50_ns")
    bound = bool(launch) and 0 < kernel < launch
    evidence = {"kernel_mean_us": round(kernel / 1000, 2), "launch_us": round(launch / 1000, 2)}
    if facts.ceilings is not None and facts.ceilings.launch_us:
        evidence["ceiling_launch_us"] = facts.ceilings.launch_us
    name = "host_bound_launch" if bound else "host_gap"
    advice = "host_bound_launch_ddp" if bound and len(facts.ranks) > 1 else None
    return _removable(
        name, "host_gap_ns", facts, limits, values=gaps, column="host_gap", evidence=evidence, advice=advice
    )


def sync_in_loop(facts: Facts, limits: Limits) -> Finding | None:
    """The host waits for the device inside the step, and the device has nothing to do afterwards."""
    answers = facts.config is not None and facts.config.mode == "inference"  # each is waited for, on purpose
    if facts.activity is None or facts.syncs is None or answers:
        return None
    gain = facts.gain(facts.activity["sync_idle_ns"])
    if gain < limits.sync_share * facts.step_ns or not facts.activity["syncs"].any():
        return None
    ranks = [rank for rank, value in facts.per_rank(facts.activity["syncs"]).items() if value > 0]
    places = _places(facts)
    evidence = {
        "syncs_per_step": round(float(facts.activity["syncs"].mean()), 2),
        "idle_behind_ms": ms(float(facts.activity["sync_idle_ns"].mean())),
        "places": places,
    }
    advice = "sync_of_ddp" if _ddp_times_itself(places) else None
    said = finding("sync_in_loop", facts, limits, ranks=ranks, gain_ns=gain, evidence=evidence, advice=advice)
    return said if advice else msgspec.structs.replace(said, advice=f"{said.advice}: {_first_place(places)}")


def small_kernels(facts: Facts, limits: Limits) -> Finding | None:
    """Many kernels so short that starting and ending them costs as much; what fusing brings cannot be told."""
    kernel, count = facts.mean("kernel_p50_ns"), facts.mean("kernels")
    if not 0 < kernel < limits.small_kernel_us * 1000 or count < limits.small_kernel_count:
        return None
    evidence = {"kernel_p50_us": round(kernel / 1000, 2), "kernels_per_step": round(count, 1)}
    return finding("small_kernels", facts, limits, evidence=evidence)


def memory_pressure(facts: Facts, limits: Limits) -> Finding | None:
    """Memory is asked from the driver, or given back to it, inside steps."""
    if facts.activity is None or facts.mean("mallocs") < max(limits.mallocs, 1e-9):
        return None
    gain = facts.gain(facts.activity["malloc_idle_ns"])
    ranks = [rank for rank, value in facts.per_rank(facts.activity["mallocs"]).items() if value >= limits.mallocs]
    evidence = {"driver_allocations_per_step": round(facts.mean("mallocs"), 2)}
    return finding("memory_pressure", facts, limits, ranks=ranks, gain_ns=gain, evidence=evidence)


def _first_place(places: list[dict[str, Any]]) -> str:
    """Return the costliest place in words: which call, how often, in which operator, range and user's function."""
    if not places:
        return "which, is not known"
    place = places[0]
    inside = [place[name] for name in _PLACE[1:] if place[name]]
    return f"{place['per_step']:g} a step, {place['call']}" + (f" in {', '.join(inside)}" if inside else "")


def _ddp_times_itself(places: list[dict[str, Any]]) -> bool:
    """Whether the costliest wait is DDP's own: it reads its timers' events in the first ten steps of a job."""
    first = places[0] if places else {}
    return first.get("call") == "cudaEventSynchronize" and first.get("range") == "DistributedDataParallel.forward"


def _places(facts: Facts) -> list[dict[str, Any]]:
    """Return the calls that cost most, with the operator and the range around them."""
    assert facts.syncs is not None
    syncs = facts.syncs
    keys = list(zip(*(syncs.texts(name) for name in _PLACE), strict=True))
    sums: dict[tuple[str | None, ...], list[int]] = {}
    for key, count, idle in zip(keys, syncs["count"].tolist(), syncs["idle_ns"].tolist(), strict=True):
        total = sums.setdefault(key, [0, 0])
        total[0] += count
        total[1] += idle
    ordered = sorted(sums.items(), key=lambda item: -item[1][1])[:_SHOWN_PLACES]
    rows = max(1, len(facts.steps))
    return [
        {
            **dict(zip(_PLACE, key, strict=True)),
            "per_step": round(total[0] / rows, 2),
            "idle_ms": ms(total[1] / rows),
        }
        for key, total in ordered
    ]


def _removable(
    name: str,
    part: str,
    facts: Facts,
    limits: Limits,
    *,
    values: Any = None,
    column: str | None = None,
    evidence: dict[str, Any] | None = None,
    overrides: list[str] | None = None,
    advice: str | None = None,
) -> Finding | None:
    """Return the finding that a part of the step is too long, on the ranks where it is; None for a small one."""
    removed = facts.steps[part] if values is None else values
    gain = facts.gain(removed)
    per_rank = facts.per_rank(removed)
    ranks = [rank for rank, value in per_rank.items() if value >= limits.reported * facts.step_ns]
    if not ranks or gain < limits.reported * facts.step_ns:
        return None
    shown = {f"{column or name}_ms": {str(rank): ms(per_rank[rank]) for rank in ranks}}
    evidence = shown | (evidence or {})
    return finding(
        name, facts, limits, ranks=ranks, gain_ns=gain, evidence=evidence, overrides=overrides, advice=advice
    )
