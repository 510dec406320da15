"""Measures what data loading costs: the training loop's waits for batches, separate from the start-up of workers.

The first batch of an epoch waits for its workers to start. This is a real cost, but once per epoch and not per step. In
a trace it shows as a wait far above the others.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankscope.analysis.rank.rank_data import RankData
from rankscope.analysis.read.pass_steps import PassSteps

_OUTLIER = 10.0  # times the median wait
_RARE = 0.34  # and at most this share of the steps have such a wait
_OUTLIER_SHARE = 0.05  # and the wait exceeds the median by this share of the median step


def loader_waits(ranks: Sequence[RankData]) -> list[dict[str, Any]]:
    """Return for each rank the waits inside the loader's `__next__` (ms): total, steady, start-up, epoch restarts."""
    rows = []
    for data in ranks:
        waits = data.steps["data_wait"].astype(float)
        if not len(waits) or not waits.any():
            continue
        median = float(np.median(waits))
        step = float(np.median(data.steps["host_end"] - data.steps["host_start"]))
        outlier = (waits > _OUTLIER * median) & (waits > median + _OUTLIER_SHARE * step)
        if outlier.mean() > _RARE:  # waits that come that often are the loader's pace, not its start
            outlier[:] = False
        first = outlier & (np.arange(len(waits)) == 0)
        steady = waits[~outlier]
        rows.append(
            {
                "rank": data.rank,
                "wait_ms": round(float(waits.sum()) * 1e-6, 6),
                "steady_mean_ms": round(float(steady.mean()) * 1e-6, 6) if len(steady) else None,
                "median_ms": round(median * 1e-6, 6),
                "startup_ms": round(float(waits[first].sum()) * 1e-6, 6) if first.any() else None,
                "epoch_restart_ms": round(float(waits[outlier & ~first].sum()) * 1e-6, 6)
                if (outlier & ~first).any()
                else None,
                "outlier_steps": data.steps["step"][outlier].tolist(),
            }
        )
    return rows


def on_cpu(passed: PassSteps) -> tuple[float, int] | None:
    """Return the share of the waits in which the loader computes, and the spare cores per rank; None: not recorded.

    The share is the CPU time of the training thread during its waits, divided by the waits, on the rank where it is
    largest. It is close to 1 for a loader that decodes in that thread, close to 0 for one that waits for storage or for
    its workers. Spare cores are those that a host's ranks may use, minus one for each thread that computes, on the host
    with the fewest.
    """
    shares = []
    for rank in passed.ranks:
        busy, waited = passed.median(rank, "data_cpu_ns"), passed.median(rank, "data_wait_ns")
        if busy is None or not waited:
            return None
        shares.append(min(1.0, busy / waited))
    hosts: dict[str, list[dict[str, Any]]] = {}
    for info in passed.info.values():
        cores, threads = info.get("affinity"), info.get("threads")
        if not isinstance(cores, list) or not all(isinstance(core, int) for core in [*cores, threads]):
            return None
        hosts.setdefault(str(info.get("host")), []).append(info)
    return (max(shares), min(map(_spare_cores, hosts.values()))) if shares and hosts else None


def _spare_cores(ranks: list[dict[str, Any]]) -> int:
    """Return how many spare cores a host has for each of its ranks."""
    cores = {core for info in ranks for core in info["affinity"]}
    taken = sum(1 if info.get("device") != "cpu" else max(1, info["threads"]) for info in ranks)
    return max(0, len(cores) - taken) // len(ranks)
