"""The parts of a step that the ranks exchange, and how much later a rank is than the others, by cause."""

import numpy as np
from numpy.typing import NDArray

from rankscope.conf.contract import BACKWARD_COMPUTE, HOST_RANGE_COLUMNS, RANGE_COLUMNS, StepColumn, StepRow
from rankscope.conf.others import median_of_others
from rankscope.harness.watch.exact_tests import Values

# ns, but for `lead`: 1 if the host has enqueued the step before the device has done its backward pass, -1 if not, 0 if
# unknown. By the host's clock: `data`, `host` (the step), `launch` (in forward, backward and optimizer) and `launch
# forward`.
PARTS = (
    "step", "data", "copy", "forward", "backward", "optimizer", "backward compute", "host", "launch", "launch forward",
    "lead",
)  # fmt: skip
# What the parts are made of, by the name that the Monitor's files have for it (ms).
TIMES: dict[str, StepColumn] = {
    f"{column.removesuffix('_ns')}_ms": column
    for column in (*RANGE_COLUMNS.values(), BACKWARD_COMPUTE, *HOST_RANGE_COLUMNS.values())
}
CAUSES = ("data", "copy", "compute", "host")
_DATA, _COMPUTE, _HOST = (CAUSES.index(cause) for cause in ("data", "compute", "host"))
_TWO_THIRDS = 2 / 3
_AS_LONG = 0.95  # a host that needs less than this share of its device's time does not hold it up


def step_ns(row: StepRow) -> int:
    """Return a step's time by the device's clock, on a CPU by the host's."""
    return int(row["host_ns"] if row["device_ns"] is None else row["device_ns"])


def of_row(row: StepRow) -> list[float]:
    """Return the `PARTS` of one step; a range that the step did not have counts as 0."""
    launches = [row[name] or 0 for name in HOST_RANGE_COLUMNS.values()]
    host = [row["host_ns"], sum(launches), row[HOST_RANGE_COLUMNS["forward"]] or 0]
    lead = 0 if row["host_ahead"] is None else 1 if row["host_ahead"] else -1
    ranges = (row[name] or 0 for name in (*RANGE_COLUMNS.values(), BACKWARD_COMPUTE))
    return [float(value) for value in (step_ns(row), *ranges, *host, lead)]


def own_parts(parts: Values) -> Values:
    """Return each rank's own time by cause (... x ranks x `CAUSES`, ns) from its parts (... x ranks x `PARTS`).

    Of the backward pass, only the time until the rank's own gradients are computed counts. The rest is waiting for the
    gradients of other ranks. Time outside of all ranges counts as waiting for data, up to the measured wait; the rest
    counts as host time.
    """
    step, data, copy, forward, backward, optimizer, backward_compute = np.moveaxis(parts, -1, 0)[:7]
    outside = np.maximum(step - copy - forward - backward - optimizer, 0)
    stalled = np.minimum(data, outside)
    return np.stack([stalled, copy, forward + backward_compute + optimizer, outside - stalled], axis=-1)


def excesses(parts: Values) -> Values:
    """Return what each rank takes longer than the median of the others (steps x ranks x `CAUSES`, ns).

    By the device's clock, but a fault of a host shows on its own clock, too (docs/monitor.md, "Who is late").
    """
    own = own_parts(parts)
    found = _beyond_others(own)
    _of_standstill(found, parts)
    longer = np.maximum(found[:, :, _COMPUTE], 0)
    by_host, nobodys = _of_hosts_in_passes(parts, own, longer)
    found[:, :, _HOST] += by_host
    found[:, :, _COMPUTE] -= by_host + nobodys
    return found


def _of_standstill(found: Values, parts: Values) -> None:
    """Divide what a device stood still outside of its passes between `data` and `host`, by what its host takes longer.

    If each host takes longer for a step than its device, no host waits for another rank. Then the fastest runs ahead,
    and its device waits longer and longer for the others, although their hosts are hardly slower. Another host that
    does not lead may wait for its device outside of its passes; then its clock tells nothing.
    """
    data, host, launch = (_of(parts, name) for name in ("data", "host", "launch"))
    slower = np.maximum(_beyond_others(host - launch - data), 0) + np.maximum(_beyond_others(launch), 0)
    slower = np.where(_others_lead(parts), slower, np.inf)
    stands = found[:, :, _DATA] + found[:, :, _HOST]
    found[:, :, _DATA] = np.minimum(found[:, :, _DATA], np.maximum(_beyond_others(data), 0))
    found[:, :, _HOST] = np.minimum(stands - found[:, :, _DATA], slower)


def _of_hosts_in_passes(parts: Values, own: Values, longer: Values) -> tuple[Values, Values]:
    """Return how much of what a device computes longer is its host's fault, and how much is nobody's (ns).

    A device follows its host in a step if it has nothing queued, and its host needs as long for the passes as the
    device. Then it is the host's, up to what this host takes longer than the others. The rest is no rank's fault if
    another host leads: in a job that is bound by its hosts, one device always follows its host (docs/metrics.md,
    "Cause"). A device may also follow its host only in the forward pass, and have work queued later.
    """
    launch, launch_forward, forward = (_of(parts, name) for name in ("launch", "launch forward", "forward"))
    follows = (_of(parts, "lead") < 0) & (launch >= _AS_LONG * own[:, :, _COMPUTE])
    in_forward = (forward > 0) & (launch_forward >= _AS_LONG * forward)
    by_host = np.where(follows, np.clip(_beyond_others(launch), 0, longer), 0)
    slower = np.minimum(_beyond_others(launch_forward), _beyond_others(forward))
    by_host = np.maximum(by_host, np.where(in_forward, np.clip(slower, 0, longer), 0))
    return by_host, np.where(follows & _others_lead(parts), longer - by_host, 0)


def _others_lead(parts: Values) -> NDArray[np.bool_]:
    """Return whether the host of another rank leads (steps x ranks)."""
    leads = _of(parts, "lead") > 0
    return np.asarray(leads.sum(axis=1, keepdims=True) > leads)


def _of(parts: Values, name: str) -> Values:
    return np.asarray(parts[:, :, PARTS.index(name)])


def late_ranks(parts: Values, least: float) -> tuple[NDArray[np.int64], Values]:
    """Return the late rank of each step, -1 for none, and what the latest one takes longer (steps x `CAUSES`, ns).

    A rank is late if it takes longer than the others by at least `least` of the median step.
    """
    found = excesses(parts)
    total = found.sum(axis=2)
    latest, most = total.argmax(axis=1), total.max(axis=1)
    is_late = (most > 0) & (most >= least * np.median(parts[:, :, 0], axis=1))
    return np.where(is_late, latest, -1), found[np.arange(len(found)), latest]


def _beyond_others(values: Values) -> Values:
    """Return values (steps x ranks, and further axes) minus the median of the other ranks' values."""
    others = median_of_others(np.moveaxis(values, 1, 0))
    return np.asarray(values - np.moveaxis(others, 0, 1))


def shares(found: Values) -> tuple[str, dict[str, float]]:
    """Return the cause of an excess (`CAUSES`) and each cause's share; the cause is mixed below two thirds."""
    total = float(found.sum())
    share = {cause: round(float(part) / total, 3) for cause, part in zip(CAUSES, found, strict=True)}
    cause = max(share, key=lambda item: share[item])
    return (cause if share[cause] >= _TWO_THIRDS else "mixed"), share
