"""What the loader costs: waits of the training loop for batches, with worker start-up kept apart.

The first batch of an epoch waits for its workers to start: a real cost, but once an epoch and not per step. In a
trace it shows as a wait far above the others.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankscope.analysis.rank_data import RankData

_OUTLIER = 10.0  # times the median wait
_OUTLIER_SHARE = 0.05  # and longer than the median by this share of the median step


def loader_waits(ranks: Sequence[RankData]) -> list[dict[str, Any]]:
    """Return per rank the waits inside the loader's `__next__` (ms): total, steady, start-up, epoch restarts."""
    rows = []
    for data in ranks:
        waits = data.steps["data_wait"].astype(float)
        if not len(waits) or not waits.any():
            continue
        median = float(np.median(waits))
        step = float(np.median(data.steps["host_end"] - data.steps["host_start"]))
        outlier = (waits > _OUTLIER * median) & (waits > median + _OUTLIER_SHARE * step)
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
