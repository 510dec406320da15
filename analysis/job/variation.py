"""What steps vary by on their own, and how much of a step a rank waited for a core.

Both are the measure for what may be said about single ranks and single steps. Definitions: docs/metrics.md, "Without
the profiler".
"""

import numpy as np

from rankscope.analysis.core.table import Column
from rankscope.analysis.job.host_pace import leads
from rankscope.analysis.job.window import Matrix, Window
from rankscope.conf.others import median_of_others

SHARED = 0.1  # share of the wanted CPU time that a rank did not get, from which it shares its cores
FAR_OUT = 3.0  # times the interquartile range: Tukey's outer fence (Exploratory Data Analysis, 1977)


def own_time(window: Window, *, core_waits: bool = False) -> Matrix:
    """Return the own time of each rank (ranks x steps, ns): its step without the optimizer and the wait for others.

    On a CPU what its thread waited for a core is left out too, unless `core_waits` asks for it. There the ranks share
    the cores with one another and with all other work, so who gets a core first is chance. The host of a GPU that waits
    for a core has a fault that can be mended.
    """
    own = window.step_ns - waited_for_others(window) - window.part("optimizer")
    waited = None if core_waits or window.on_device else waited_for_core(window)
    return own if waited is None else np.maximum(0.0, own - waited)


def waited_for_others(window: Window) -> Matrix:
    """Return the time from a rank's own gradients to the end of its backward pass (ranks x steps, ns)."""
    return window.part("backward") - window.backward_compute_ns


def slower_beside_waits(window: Window) -> Matrix:
    """Return by how much waiting for a rank may slow what the others compute meanwhile (ranks x steps, ns).

    A collective in which a rank waits occupies a part of its device. So if a rank has a longer forward pass, the others
    have a longer backward pass, up to all of that time. But ranks may also spread the same work differently over both
    passes. Only known if every host leads: otherwise a device also waits for its host in these passes.
    """
    if not window.on_device or not leads(window).all() or not window.backward_compute_ns.any():
        return np.zeros(window.step_ns.shape)
    forward, backward = window.part("forward"), window.backward_compute_ns
    longer, slower = forward - median_of_others(forward), median_of_others(backward) - backward
    return np.maximum(0.0, np.minimum(longer, slower))


def spread(window: Window, waits_in_passes: Matrix | None = None) -> Column:
    """Return by rank what its lateness varies by without a fault (ns). `waits_in_passes`: in forward and backward.

    It is the interquartile range of the own time of the other ranks (their median), because a fault of the rank itself
    is not in it. If all ranks vary together, for example with the length of the batch, the difference between the rank
    and the others varies less: the smaller of the two counts. A rank on a CPU that often waits for a core also loses
    time when it gets one back (its caches are cold), which the others do not tell: then the larger of the two counts.
    """
    own = own_time(window) - (0.0 if waits_in_passes is None else waits_in_passes)
    others = median_of_others(interquartile(own)[:, None])[:, 0]
    apart = interquartile(own - median_of_others(own))
    waited, busy = waited_for_core(window), window.part("cpu")
    if waited is None or window.on_device:
        return np.asarray(np.minimum(others, apart))
    shares_cores = waited.sum(1) > SHARED * (waited + busy).sum(1)
    return np.asarray(np.where(shares_cores, np.maximum(others, apart), np.minimum(others, apart)))


def interquartile(values: Matrix) -> Column:
    """Return by rank the difference between the third and the first quartile of its steps."""
    low, high = np.percentile(values, [25, 75], axis=1)
    found: Column = high - low
    return found


def of_steps(times: Column) -> float:
    """Return what usual steps vary by: the interquartile range, from the lower half of the steps mirrored.

    Slow steps, up to half of all, do not widen it.
    """
    low, middle = np.percentile(times, [25, 50])
    return float(2 * (middle - low))


def fence(times: Column) -> float:
    """Return the time from which a step is far outside of what the usual ones vary by.

    It is Tukey's outer fence: the third quartile plus three times the interquartile range, both as in `of_steps`.
    """
    return float(np.median(times)) + (0.5 + FAR_OUT) * of_steps(times)


def waited_for_core(window: Window) -> Matrix | None:
    """Return how long the ranks' threads waited for a core (ranks x steps, ns); None if not recorded of every rank."""
    waited = window.columns.get("core_wait_ns")
    return None if waited is None or np.isnan(waited).any() else waited
