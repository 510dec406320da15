"""Turns columns of nanoseconds into numbers for a summary: ms or us, rounded, None if a value is unknown."""

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.table import UNKNOWN, Column

PERCENTILES = {"p50_ms": (50, 1), "p95_ms": (95, 20), "p99_ms": (99, 100)}  # percent, minimum number of values


def known_of(values: Column) -> Column:
    return np.asarray(values[values != UNKNOWN])


def sum_of(values: Column) -> float | None:
    """Return the sum (ns); None if a value is unknown."""
    return None if (values == UNKNOWN).any() else float(values.sum())


def mean_of(values: Column) -> float | None:
    """Return the mean (ms); None if a value is unknown."""
    return None if (values == UNKNOWN).any() else ms(float(values.mean()))


def median_of(values: Column) -> float | None:
    """Return the median of the known values (ms); None if there are none."""
    known = known_of(values)
    return ms(float(np.median(known))) if len(known) else None


def ms(nanoseconds: float | None) -> float | None:
    """Return milliseconds, rounded to the nanosecond."""
    return None if nanoseconds is None else round(float(nanoseconds) * 1e-6, 6)


def estimate_ms(nanoseconds: float) -> float:
    """Return milliseconds, rounded to a tenth of a microsecond: further digits of an estimate mean nothing."""
    return round(float(nanoseconds) * 1e-6, 4)


def us(nanoseconds: float) -> float:
    """Return microseconds, rounded to the nanosecond."""
    return round(float(nanoseconds) * 1e-3, 3)


def percentiles(latencies_ms: NDArray[np.float64]) -> dict[str, float | None]:
    """Return p50, p95 and p99 (ms). A percentile P is null with fewer than 100 / (100 - P) values."""
    return {
        name: float(np.percentile(latencies_ms, percent)) if len(latencies_ms) >= least else None
        for name, (percent, least) in PERCENTILES.items()
    }
