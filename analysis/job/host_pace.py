"""How fast the hosts enqueue a step if nothing blocks them.

Later the host of a rank that waits for others is as slow as they are, because its launches fill the device's queue. The
timed window opens with an idle device, so in its first steps no host is blocked. The first steps of the plain window
are often the first of the job, in which memory is allocated and kernels are loaded: only the fastest warm-up step tells
something there.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.table import Column
from rankscope.analysis.job.window import Matrix, Window
from rankscope.conf.contract import DATA_WAIT

_UNBLOCKED = 2  # steps after a window has opened
_LEADS = 0.5  # share of the steps, from which a host leads
_AS_LONG = 0.9  # of the host's passes, from which the device's take about as long
_PARTS = ("forward", "backward", "optimizer")


def leads(window: Window) -> NDArray[np.bool_]:
    """Return by rank whether its host has usually enqueued a step before the device has done its backward pass."""
    unknown = np.zeros(window.step_ns.shape)
    found: NDArray[np.bool_] = np.mean(window.columns.get("host_ahead", unknown), axis=1) >= _LEADS
    return found


class HostPace(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of hosts that nothing blocked, ranks x steps, ns of the host."""

    parts: dict[str, Matrix]  # forward, backward, optimizer
    step_ns: Matrix  # these parts and the wait for the loader

    @classmethod
    def of(cls, window: Window, *, timed: bool) -> "HostPace | None":
        """Return the pace from the warm-up: the first steps if the window is the timed one, otherwise the fastest."""
        rows = np.flatnonzero(~window.counted)
        if not window.on_device or not len(rows) or any(f"{name}_host_ns" not in window.columns for name in _PARTS):
            return None
        rows = rows[:_UNBLOCKED] if timed else rows
        parts = {name: window.part(f"{name}_host")[:, rows] for name in _PARTS}
        step: Matrix = np.asarray(sum(parts.values()) + window.part(DATA_WAIT)[:, rows])
        if not timed:
            parts = {name: values.min(axis=1, keepdims=True) for name, values in parts.items()}
            step = step.min(axis=1, keepdims=True)
        return cls(parts=parts, step_ns=step)

    def usual_ns(self, part: str, but: int) -> float:
        """Return the time that the other ranks need for a part: the median over them and their steps."""
        return float(np.median(np.delete(self.parts[part], but, axis=0)))

    def after_ns(self, window: Window, but: int, *, known: bool, waited_ns: float = 0.0) -> float:
        """Return the step at which the hosts of the other ranks bind the job, once the rank `but` is mended.

        In each step the slowest host sets the pace, and hosts vary: on two H200s the longest of these few steps was
        longer than the clean job's in most cases, and their median in half of them (docs/validation.md). So it is the
        longest, unless the pace of the job's hosts is `known` from the steps of the late rank. It is 0 if the others'
        devices have work queued and need about as long for their passes as their hosts, with the wait for the loader:
        then the devices bind the job, and a host that enqueues more than their queues hold is as slow as they are.
        `waited_ns`: how much of their passes is a wait for the rank `but`.
        """
        device = window.part("forward") + window.backward_compute_ns - waited_ns
        host = self.parts["forward"] + self.parts["backward"]
        device_ns, host_ns, data_ns = (
            float(np.median(np.delete(times, but, axis=0))) for times in (device, host, window.part(DATA_WAIT))
        )
        if np.delete(leads(window), but).all() and device_ns >= _AS_LONG * (host_ns + data_ns):
            return 0.0
        slowest: Column = np.delete(self.step_ns, but, axis=0).max(axis=0)
        return float(np.median(slowest) if known else slowest.max())
