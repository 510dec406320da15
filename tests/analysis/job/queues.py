"""Simulates data-parallel steps on GPUs: each host enqueues work, its device does it in order, and all ranks meet.

What rankscope records follows from this, so faults and their cost are known: the same random numbers without the fault.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.job.late_rank import JobVerdict, judge
from rankscope.analysis.job.timed_calls import TimedCalls
from rankscope.analysis.job.window import Window

Times = NDArray[np.float64]
WARM_UP, PLAIN, TIMED = 2, 42, 32  # steps
_PASSES = ("forward", "backward", "optimizer")
_CHUNKS = 8  # launches of a pass


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What takes rank 1 longer in a step (ms)."""

    outside: float = 0.0  # its host sleeps
    loader: float = 0.0  # its host waits for its batch
    copy: float = 0.0  # on the device
    forward: float = 0.0  # on the device
    checkpoint: float = 0.0  # its host, at the end of every `every`-th step
    every: int = 1


@dataclass(kw_only=True)
class Simulated:
    """Two windows of a job, and what rankscope says of them. `mean_ms` is the plain step."""

    plain: Window
    verdict: JobVerdict
    mean_ms: float


def simulate(
    seed: int,
    host: tuple[float, float, float],
    device: tuple[float, float, float],
    fault: Fault = Fault(),
    *,
    ranks: int = 2,
    noise: float = 0.03,
    loader: float = 0.0,
    reads_loss: bool = False,
    queue: int = 1_000_000,
) -> Simulated:
    """Run a job whose hosts and devices need these times (ms) for forward, backward and optimizer.

    Each host first waits `loader` for its batch. The hosts' times are lognormal with `noise`, independent for each rank
    and step. A device's queue holds `queue` launches; a step has 25.
    """
    random = np.random.default_rng(seed)
    on_1 = np.arange(ranks) == 1
    hosts, devices = np.zeros(ranks), np.zeros(ranks)
    rows: list[dict[str, Times]] = []
    done: list[Times] = []  # when each launch was done
    for step in range(PLAIN + TIMED):
        if step == PLAIN:  # a window opens with idle devices
            hosts = devices = np.full(ranks, max(hosts.max(), devices.max()))
        slower = np.exp(noise * random.standard_normal(ranks))
        devices = np.maximum(hosts, devices)
        row, began = {}, (hosts, devices)
        row["data_wait"] = (loader + fault.loader * on_1) * np.exp(noise * random.standard_normal(ranks))
        hosts = hosts + row["data_wait"] + fault.outside * on_1
        devices = np.maximum(hosts, devices)
        row["h2d"] = 0.1 + fault.copy * on_1
        devices = devices + row["h2d"]
        for name, enqueue, work in zip(_PASSES, host, device, strict=True):
            devices = np.maximum(hosts, devices)
            begin = (hosts, devices)
            work = work + fault.forward * on_1 * (name == "forward")
            for _ in range(_CHUNKS):
                hosts = hosts + enqueue * slower / _CHUNKS
                if len(done) >= queue:
                    hosts = np.maximum(hosts, done[-queue])
                devices = np.maximum(hosts, devices) + work / _CHUNKS
                done.append(devices)
            if name == "backward":
                row["backward_compute"], row["call"] = devices - begin[1], -devices
                devices = np.full(ranks, devices.max() + 0.4)
                done.append(devices)
                row["call"] += devices
                backward = devices
            row[name], row[f"{name}_host"] = devices - begin[1], hosts - begin[0]
        if reads_loss:
            hosts = np.maximum(hosts, devices)
        if fault.checkpoint and step % fault.every == fault.every - 1:
            hosts = np.where(on_1, np.maximum(hosts, devices) + fault.checkpoint, hosts)
        row |= {"device": np.maximum(hosts, devices) - began[1], "host": hosts - began[0]}
        rows.append({f"{key}_ns": value * 1e6 for key, value in row.items()} | {"host_ahead": 1.0 * (backward > hosts)})

    def window(first: int, last: int) -> Window:
        columns = {key: np.array([row[key] for row in rows[first:last]]).T for key in rows[0] if key != "call_ns"}
        counted = np.arange(last - first) >= WARM_UP
        return Window(ranks=list(range(ranks)), steps=list(range(first, last)), columns=columns, counted=counted)

    calls = TimedCalls(
        ranks=list(range(ranks)), group=["0"] * TIMED, kind=["allreduce"] * TIMED, bytes=[1] * TIMED,
        seq=list(range(TIMED)), step=np.arange(PLAIN, PLAIN + TIMED),
        duration_ns=np.array([row["call_ns"] for row in rows[PLAIN:]]).T,
    )  # fmt: skip
    plain = window(0, PLAIN)
    verdict = judge(window(PLAIN, PLAIN + TIMED), calls, Limits(), plain)
    return Simulated(plain=plain, verdict=verdict, mean_ms=float(plain.step_ns[:, WARM_UP:].mean()) * 1e-6)
