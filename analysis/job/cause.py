"""Why a rank is late: the part of its step that is longer than on the other ranks.

Input: a `Window` with the steps in which the rank is late. Output: `Why`. Definitions: docs/metrics.md, "Without the
profiler", Cause.
"""

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.chance import median_interval
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.job.host_pace import HostPace, leads
from rankscope.analysis.job.window import Matrix, Window
from rankscope.conf.contract import DATA_WAIT, DEVICE_RANGES
from rankscope.conf.others import median_of_others

Cause = Literal["compute", "data", "host", "copy"]
_OUTSIDE = "outside forward, backward and optimizer"
_HOSTS = ("forward", "backward", "optimizer")
_AS_LONG = 0.95  # of the device's time, from which the host takes as long
_LONGER = 1.1  # times the host's passes, from which the device does not wait for its host in them
_SLOWER = 0.5  # of the others' unblocked host: a host that takes that much longer is slow; equal hosts differ by 0.4


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rank is late: the cause, the part of the step, and how much longer that part is than on the others (ns)."""

    cause: Cause
    part: str
    excess_ns: float
    follows: bool = False  # its device follows its host in these steps
    holds_passes: bool = False  # the other ranks wait for it within their passes


def cause_of(
    window: Window,
    at: int,
    lateness_ns: float,
    limits: Limits,
    pace: HostPace | None = None,
    judged: Window | None = None,
) -> Why | None:
    """Return why the rank at position `at` is late in the steps of `window`; None if nothing explains it.

    A part explains the lateness if its excess over the other ranks is at least `cause_share` of it. `judged` are all
    steps if the rank is late in most of them, so that its lateness may add up over steps.
    """
    needed = limits.cause_share * lateness_ns
    if not window.on_device:
        return _first(_parts_without_device(window, at, needed), needed)
    ahead = window.columns.get("host_ahead")
    if ahead is None or np.isnan(ahead).any():
        return _first([*_before_forward(window, at), _compute(window, at)], needed)
    leading = leads(window)
    slow_device = _sets_pace(window, at, pace)
    if leading[at]:
        found = _before_the_passes(window, at, lateness_ns, limits, pace, judged)
        return found or (_first(_parts_of_device(window, at, lateness_ns, needed), needed) if slow_device else None)
    if np.delete(leading, at).any():
        return _without_lead(window, at, lateness_ns, limits, pace)
    # No host has a lead, for example because each step reads its loss, so all of them can be compared.
    compute = [_compute(window, at)] if slow_device else []
    return _first([*_before_forward(window, at), *_of_host(window, at), *compute], needed)


def _first(parts: list[Why], needed: float) -> Why | None:
    return next((item for item in parts if item.excess_ns >= needed), None)


def _before_forward(window: Window, at: int) -> list[Why]:
    """Return what comes before the forward pass, and the rest of the step: on a device the time when it is idle."""
    rest = window.step_ns - sum(window.part(name) for name in DEVICE_RANGES)
    return [
        _why("data", "waiting for the loader", _excess(window.part(DATA_WAIT), at)),
        _why("copy", "copies to the device", _excess(window.part("h2d"), at)),
        _why("host", _OUTSIDE, _excess(rest if window.on_device else rest - window.part(DATA_WAIT), at)),
    ]


def _parts_without_device(window: Window, at: int, needed: float) -> list[Why]:
    compute = _compute(window, at)
    cpu = window.columns.get("cpu_ns")
    if cpu is not None and _excess(cpu, at) < needed / 2:  # it sleeps, it does not compute
        compute = msgspec.structs.replace(compute, cause="host")
    return [*_before_forward(window, at), compute]


def _sets_pace(window: Window, at: int, pace: HostPace | None) -> bool:
    """Return whether the rank's device takes longer for its passes than its unblocked host needs to enqueue them.

    Otherwise the device waits for its host in between, and a longer pass may be a slower host. True if it is unknown.
    """
    own = window.backward_compute_ns[at]
    if pace is None or not own.any():
        return True
    host = max(pace.parts["forward"][at] + pace.parts["backward"][at])
    return float(np.median(window.part("forward")[at] + own)) >= _LONGER * float(host)


def _parts_of_device(window: Window, at: int, lateness_ns: float, needed: float) -> list[Why]:
    """Return the parts of a step that the host has enqueued before the device has finished it.

    If its forward pass does not show the lateness, it is the backward pass. That needs an excess of its own part of
    only half as much: the collectives in which the other ranks wait slow down what they compute meanwhile. If the own
    part is unknown, nothing else is needed.
    """
    parts = [_compute(window, at)]
    if _starves(window, at):
        forward = min(_excess(window.part(name), at) for name in ("forward", "forward_host"))
        parts.insert(0, _why("host", "forward", forward))
    if not window.backward_compute_ns.any() or _excess(window.backward_compute_ns, at) >= needed / 2:
        parts.append(_why("compute", "backward", lateness_ns))
    return parts


def _without_lead(window: Window, at: int, lateness_ns: float, limits: Limits, pace: HostPace | None) -> Why | None:
    """Return why a rank is late whose device follows its host, while the devices of the other ranks have work queued.

    In a job that is bound by its hosts one rank always follows, although all are equally fast: its device needs the
    time of its host for forward and backward, those of the others only their own. That part of the lateness is nobody's
    fault. So a part need explain only the rest of the lateness, or half of it if that is more.
    """
    host = {name: window.part(f"{name}_host") for name in _HOSTS}
    slower = {name: 0.0 if pace is None else _median(host[name], at) - pace.usual_ns(name, at) for name in _HOSTS}
    passes = {"forward": window.part("forward"), "backward": window.backward_compute_ns}
    follows = sum(max(0.0, _excess(times, at) - max(0.0, slower[name])) for name, times in passes.items())
    needed = limits.cause_share * max(lateness_ns - follows, lateness_ns / 2)
    data, copy, _ = _before_forward(window, at)
    # A copy costs nothing if the device has made up for it when the host has enqueued both passes.
    made_up = sum(_median(times, at) for times in (window.part("h2d"), *passes.values()))
    behind = made_up - _median(host["forward"], at) - _median(host["backward"], at)
    parts = [data, msgspec.structs.replace(copy, excess_ns=min(copy.excess_ns, behind))]
    for why in _of_host(window, at):
        excess = why.excess_ns
        if why.part in host and pace is not None:
            if slower[why.part] >= _SLOWER * pace.usual_ns(why.part, at):
                excess = max(excess, slower[why.part])
            # Queues block the other hosts in any part, so a host that is slow needs longer for all parts together.
            excess = min(excess, sum(slower.values()))
        parts.append(msgspec.structs.replace(why, excess_ns=excess))
    found = _first(parts, needed)
    return None if found is None else msgspec.structs.replace(found, follows=True)


def _of_host(window: Window, at: int) -> list[Why]:
    """Return how much longer the host takes than the others' in each part of the step, by its own clock."""
    hosts = {name: window.part(f"{name}_host") for name in _HOSTS}
    outside = window.part("host") - sum(hosts.values()) - window.part(DATA_WAIT)
    parts = [_why("host", name, _excess(times, at)) for name, times in hosts.items()]
    return [*parts, _why("host", _OUTSIDE, _excess(outside, at))]


def _before_the_passes(
    window: Window, at: int, lateness_ns: float, limits: Limits, pace: HostPace | None, judged: Window | None
) -> Why | None:
    """Return what comes before the forward pass and explains the lateness.

    If each host takes longer for a step than its device, no host waits for another rank. Then the fastest runs ahead,
    and its device waits longer and longer for the others, although their hosts are hardly slower. So the device may
    stand still for that long only if its own host is slower by as much. If this host surely takes longer before its
    passes, by what is enough to be late, this adds up over steps. Then a part need explain only what each step adds.
    """
    leading = leads(window)
    data, copy, outside = _before_forward(window, at)
    longer = _median(_longer_before(window, leading), at)
    most = max(longer, _unblocked_excess(window, at, leading, pace))
    outside = msgspec.structs.replace(outside, excess_ns=min(outside.excess_ns, most))
    surely = None if judged is None else median_interval(_longer_before(judged, leading)[at], 1 - limits.chance)
    adds_up = surely is not None and surely[0] >= limits.late_step * float(np.median(window.step_ns))
    of_host = min(lateness_ns, longer) if adds_up else lateness_ns
    needed = {"data": of_host, "copy": lateness_ns, "host": of_host}
    parts = (data, copy, outside)
    return next((item for item in parts if item.excess_ns >= limits.cause_share * needed[item.cause]), None)


def _longer_before(window: Window, leading: NDArray[np.bool_]) -> Matrix:
    """Return how much longer each host takes outside of its passes than the others' hosts (ranks x steps, ns).

    A queue that is full blocks a host only within its passes, so a host that leads is not blocked outside of them.
    Another may wait there for its device: of that one only the wait for the loader counts.
    """
    passes = np.asarray(sum(window.part(f"{name}_host") for name in _HOSTS))
    outside = window.part("host") - passes
    others = np.where(leading[:, None], outside, window.part(DATA_WAIT))
    return np.asarray(outside - median_of_others(others))


def stands_still(window: Window, lateness: Matrix, limits: Limits) -> NDArray[np.bool_]:
    """Return where a rank is late only because its device stands still, although its host is no slower.

    Hosts that take longer than their devices run apart by chance, and nobody is late then. Ranks x steps, like the
    `lateness` (ns).
    """
    leading = leads(window)
    if not window.on_device or not leading.any():
        return np.zeros(lateness.shape, bool)
    idle = window.step_ns - sum(window.part(name) for name in DEVICE_RANGES)
    needed = limits.cause_share * lateness
    stands = (idle - median_of_others(idle) >= needed) & (_longer_before(window, leading) < needed)
    return np.asarray(stands & leading[:, None])


def _unblocked_excess(window: Window, at: int, leading: NDArray[np.bool_], pace: HostPace | None) -> float:
    """Return how much longer the host takes for a step than the others' hosts would if nothing blocked them (ns)."""
    passes = np.asarray(sum(window.part(f"{name}_host") for name in _HOSTS))
    unblocked = 0.0 if pace is None else sum(pace.usual_ns(name, at) for name in _HOSTS)
    return _median(_longer_before(window, leading) + passes, at) - unblocked


def _starves(window: Window, at: int) -> bool:
    """Return whether the host can be what the device waits for in the forward pass: then it takes as long there."""
    return _median(window.part("forward_host"), at) >= _AS_LONG * _median(window.part("forward"), at)


def _compute(window: Window, at: int) -> Why:
    """Return how much longer a rank computes than the others, forward and backward, and where more of it is lost."""
    forward, backward = (_excess(values, at) for values in (window.part("forward"), window.backward_compute_ns))
    part = "backward" if backward > forward else "forward"
    return _why("compute", part, max(0.0, forward) + max(0.0, backward))


def _why(cause: Cause, part: str, excess_ns: float) -> Why:
    return Why(cause=cause, part=part, excess_ns=excess_ns)


def _median(values: Matrix, at: int) -> float:
    return float(np.median(values[at]))


def _excess(values: Matrix, at: int) -> float:
    return float(np.median(values[at] - median_of_others(values)[at]))
