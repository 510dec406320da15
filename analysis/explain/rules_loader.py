"""Rules about the loader: waits for batches, and single slow batches."""

import numpy as np

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.explain.facts import Facts
from rankscope.analysis.explain.removable import removable
from rankscope.analysis.explain.rule import WORKERS, Advice, Claim, Mended, Rule

_LISTED = 3  # slow batches named in a sentence


def _data_stall(facts: Facts, limits: Limits) -> Claim | None:
    workers = _workers(facts)
    doubled = [f"num_workers={2 * workers}"] if workers and workers >= WORKERS else None  # it has the advised number
    if facts.loader_cpu is None:
        return removable(facts, limits, facts.steps["data_stall_ns"], "data_stall", overrides=doubled)
    share, spare = facts.loader_cpu
    evidence = {"loader_cpu_share": round(share, 4), "spare_cores_per_rank": spare}
    variant, overrides = "idle", doubled  # a loader that sleeps needs no cores
    if share >= limits.busy_loader_share:
        variant, overrides = ("busy", [f"num_workers={min(WORKERS, spare)}"]) if spare else ("no_cores", None)
    elif workers != 0 and (workers or 1) >= spare:  # the wait does not show whether workers compute: they may
        variant, overrides = "full", None
    stall = facts.steps["data_stall_ns"]
    return removable(facts, limits, stall, "data_stall", evidence=evidence, overrides=overrides, variant=variant)


def _workers(facts: Facts) -> int | None:
    """Return how many workers a loader has; None if unknown, as for a script of the user's."""
    return None if facts.config is None or facts.config.script is not None else facts.config.num_workers


def _first_batch(facts: Facts, limits: Limits) -> Claim | None:
    """Spread the restarts of workers inside the window over the recorded steps.

    If it was recorded where epochs begin, and none begins there, single batches were slow: a window of a few steps does
    not show how often that happens.
    """
    restarts = {row["rank"]: row["epoch_restart_ms"] for row in facts.loader if row["epoch_restart_ms"]}
    if not restarts:
        return None
    restarted = np.zeros(len(facts.steps), bool)
    for row in facts.loader:
        restarted |= (facts.steps["rank"] == row["rank"]) & np.isin(facts.steps["step"], row["outlier_steps"])
    gain = min(max(restarts.values()) * 1e6 / facts.count, facts.gain(facts.steps["data_stall_ns"] * restarted))
    if gain < limits.reported * facts.step_ns:
        return None
    evidence = {"epoch_restart_ms": {str(rank): value for rank, value in restarts.items()}, "steps": facts.count}
    late = {(step, row["rank"]) for row in facts.loader if row["epoch_restart_ms"] for step in row["outlier_steps"]}
    if facts.epochs is not None and (not late & facts.epochs or _workers(facts) == 0):
        place = ", ".join(f"step {step} of rank {rank}" for step, rank in sorted(late)[:_LISTED])
        return Claim(ranks=sorted(restarts), evidence=evidence, variant="one_batch", place=place)
    return Claim(ranks=sorted(restarts), gain_ns=gain, evidence=evidence, variant=None if facts.epochs else "perhaps")


RULES = (
    Rule(
        id="data_stall",
        says="the device waits for batches",
        seen_in="data_stall",
        based_on="data stall of the step; how much of the wait is the loader's own CPU time, and how many cores are "
        "available for workers",
        check=_data_stall,
        advice=Advice(
            "the device waits for batches: more loader workers, a larger prefetch_factor, or cheaper decoding",
            (f"num_workers={WORKERS}",),
        ),
        variants={
            "busy": Advice(
                "the device waits for batches, which the loader computes on the rank's own core: workers, or cheaper "
                "decoding",
                (f"num_workers={WORKERS}",),
            ),
            "idle": Advice(
                "the device waits for batches, and the loader for something else (its storage, its workers): more "
                "workers, a larger prefetch_factor, faster storage",
                (f"num_workers={WORKERS}",),
            ),
            "full": Advice(
                "the device waits for batches; no core is left for more workers that decode: faster storage, cheaper "
                "decoding, prepared samples, or fewer workers"
            ),
            "no_cores": Advice(
                "the device waits for batches, and the loader computes all that time on a host without spare cores: "
                "cheaper decoding or prepared samples; workers would take cores from the ranks"
            ),
        },
        part="loader",
        mended=Mended(works=("loader",), as_others=True),
        drop_if_small=True,
    ),
    Rule(
        id="first_batch",
        says="the loader starts again in every epoch",
        seen_in="data_stall",
        based_on="data waits of more than ten times the median, after the first step",
        counts_steps=True,
        check=_first_batch,
        advice=Advice(
            "the loader's workers start again in every epoch: keep them, or make epochs longer",
            (f"num_workers={WORKERS}", "data.persistent_workers=true"),
        ),
        variants={
            "perhaps": Advice(
                "single batches take more than ten times as long as usual; if epochs begin there, the loader's workers "
                "start again: keep them (persistent_workers), or make epochs longer"
            ),
            "one_batch": Advice("single batches took more than ten times as long as usual, and no epoch began there"),
        },
        part="loader",
        drop_if_small=True,
    ),
)
