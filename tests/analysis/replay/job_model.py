"""A data-parallel job whose host runs ahead of its devices, as Chrome traces and as the true length of its steps.

Each rank waits for a batch, launches the kernels of forward and backward, an all-reduce for each bucket on a stream of
its own, and the optimizer, which waits for all of them. Nothing but these rules decides when anything starts.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

US, MS = 1_000, 1_000_000
_BASE = 1_767_225_600_000_000_000
_LATENCY, _BETWEEN, _CALL = 4 * US, 1 * US, 5 * US
_FIRST = 4


@dataclass(frozen=True, kw_only=True)
class Job:
    """Durations in ns; `compute` and `loader` by rank."""

    world: int
    steps: int = 6
    buckets: int = 3
    kernels: int = 8  # of forward, and of each bucket's backward
    compute: tuple[int, ...] = ()
    loader: tuple[int, ...] = ()
    host: int = 20 * US  # between launches
    transfer: int = 2 * MS
    synchronises: bool = False  # at the end of each step
    reduces: bool = True  # False: one rank without DDP
    hosts: tuple[int, ...] = ()  # by rank, how many times as long `host` takes
    named: tuple[str, ...] = ()  # by rank, in front of the names of its kernels
    thinks: int = 0  # ns of Python on rank 0 before the first of its further kernels
    more: tuple[int, ...] = ()  # further kernels by rank, before forward
    releases: int = 0  # ns of the host after a copy, for its memory
    copy: int = 0  # of a batch from pageable memory: the call returns with its end
    started: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        for name, value in (("compute", 300 * US), ("loader", 50 * US), ("started", 0)):
            if not getattr(self, name):
                object.__setattr__(self, name, (value,) * self.world)


def random_job(seed: int) -> Job:
    rng = np.random.default_rng([seed, 16])
    world = int(rng.integers(2, 6))
    return Job(
        world=world,
        buckets=int(rng.integers(1, 5)),
        kernels=int(rng.integers(2, 10)),
        compute=(int(rng.integers(100, 500)) * US,) * world,
        host=int(rng.integers(5, 40)) * US,
        transfer=int(rng.integers(1, 30)) * 100 * US,
        synchronises=bool(rng.integers(2)),
    )


def with_one(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])


class _Rank:
    def __init__(self, rank: int, job: Job) -> None:
        self.rank, self.job = rank, job
        self.host = job.started[rank]
        self.thread = 4242
        self.free = {7: 0, 20: 0}  # stream -> when its last record ended
        self.events: list[dict[str, Any]] = []
        self.correlation = 0

    def event(self, category: str, name: str, start: int, end: int, tid: int, **args: Any) -> None:
        pid = self.rank if category in ("kernel", "gpu_memcpy") else 4242
        found = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start / 1000}
        self.events.append(found | {"dur": (end - start) / 1000, "args": args})

    def call(self, name: str) -> int:
        """Do a runtime call after the host's work; returns when it began."""
        self.host += self.job.host * (self.job.hosts[self.rank] if self.job.hosts else 1)
        began = self.host
        self.correlation += 1
        self.host += _CALL
        self.event("cuda_runtime", name, began, self.host, self.thread, correlation=self.correlation)
        return began

    def kernel(self, name: str, took: int, after: int = 0) -> int:
        name = (self.job.named[self.rank] if self.job.named else "") + name
        start = max(self.call("cudaLaunchKernel") + _LATENCY, self.free[7] + _BETWEEN, after)
        self.free[7] = start + took
        self.event("kernel", name, start, start + took, 7, **self._on(7))
        return start + took

    def copied(self, took: int) -> None:
        """Copy a batch from pageable memory: the driver does so inside the call, after the work of the stream."""
        began = self.host + self.job.host
        self.correlation += 1
        start = max(began + _LATENCY, self.free[7] + _BETWEEN)
        self.host = self.free[7] = start + took
        self.event("cuda_runtime", "cudaMemcpyAsync", began, self.host, 4242, correlation=self.correlation)
        self.event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", start, self.host, 7, **self._on(7))

    def forward(self) -> None:
        """Wait for a batch, copy it, and launch the forward pass."""
        job, waited = self.job, self.host + self.job.loader[self.rank]
        self.event("user_annotation", "data_wait", self.host, waited, 4242)
        self.host = waited
        if job.copy:
            self.copied(job.copy)
            self.host += job.releases
        if self.rank == 0:
            self.host += job.thinks
        for _ in range(job.more[self.rank] if job.more else 0):
            self.kernel("product", 100 * US)
        for number in range(job.kernels):
            self.kernel(f"forward_{number}", job.compute[self.rank])

    def _on(self, stream: int) -> dict[str, int]:
        return {"device": self.rank, "stream": stream, "correlation": self.correlation}

    def arrive(self) -> int:
        """Launch an all-reduce after the work so far; returns when it starts."""
        self.call("cudaStreamWaitEvent")
        launched = self.call("cudaLaunchKernelExC")
        return max(launched + _LATENCY, self.free[7] + _BETWEEN, self.free[20] + _BETWEEN)

    def reduce(self, start: int, end: int, members: int) -> None:
        """Record it. It was the last launch of this rank."""
        self.free[20] = end
        metadata = {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float"}
        metadata |= {"Group size": members, "Process Group Name": "0", "Process Group Ranks": str(list(range(members)))}
        self.event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", start, end, 20, **self._on(20), **metadata)


def simulate(job: Job, folder: Path | None = None) -> float:
    """Return the mean step after the first two (ns); with a folder, write a trace per rank."""
    ranks = [_Rank(rank, job) for rank in range(job.world)]
    ends = []
    for step in range(_FIRST, _FIRST + job.steps):
        ends.append(_step(job, ranks, step))
    if folder is not None:
        for rank in ranks:
            document = {
                "schemaVersion": 1,
                "distributedInfo": {"backend": "nccl", "rank": rank.rank, "world_size": job.world},
                "baseTimeNanoseconds": _BASE,
                "traceEvents": rank.events,
            }
            (folder / f"rank{rank.rank}.json").write_text(json.dumps(document))
    return float(np.diff(ends)[1:].mean())


def _step(job: Job, ranks: list[_Rank], step: int) -> int:
    began = [rank.host for rank in ranks]
    for rank in ranks:
        rank.forward()
    for bucket in range(job.buckets):
        starts = []
        for rank in ranks:
            rank.thread = 4343  # autograd's
            for number in range(job.kernels):
                rank.kernel(f"backward_{bucket}_{number}", job.compute[rank.rank])
            if job.reduces:
                starts.append(rank.arrive())
        for rank, start in zip(ranks, starts, strict=True) if job.reduces else ():
            rank.reduce(start, max(starts) + job.transfer, job.world)
    last = 0
    for rank, start in zip(ranks, began, strict=True):
        rank.thread = 4242
        if job.reduces:
            rank.call("cudaStreamWaitEvent")
        ended = rank.kernel("optimizer", job.compute[rank.rank], after=rank.free[20] + _BETWEEN)
        if job.synchronises:
            begun = rank.host + job.host
            rank.host = max(begun + _CALL, ended + 3 * US)
            rank.correlation += 1
            rank.event("cuda_runtime", "cudaStreamSynchronize", begun, rank.host, 4242, correlation=rank.correlation)
        rank.event("user_annotation", f"ProfilerStep#{step}", start, rank.host, 4242)
        rank.host += job.host
        last = max(last, ended)
    return last
