"""Multi-rank timelines with known truth, as Chrome traces: a small DDP simulator for the property tests.

Every rank computes, reduces its buckets on a second stream and waits where DDP waits. Planted on one rank: longer
compute, a slow loader, a late host, longer copies. Recorded as profilers do: clocks with offset and drift, left-over
kernels of the step before the window (another number on every rank, without launch and metadata), several groups.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

US = 1_000  # ns
MS = 1_000_000
FAULTS = ("none", "compute", "data", "host", "copy")
_LAUNCH_AHEAD = 100 * US
_BASE = 1_767_225_600_000_000_000
_START = 3_000 * MS
ORIGIN = _BASE + _START  # the instant at which a drifting clock shows its offset


@dataclass(kw_only=True)
class Plan:
    """What happens, in every step of every rank."""

    world: int
    steps: int
    buckets: int
    seed: int
    fault: str = "none"
    fault_rank: int = 0
    fault_ns: int = 0
    fault_steps: frozenset[int] | None = None  # None: all
    end_jitter_ns: int = 0  # ends of one collective differ between ranks by up to this
    offsets_ns: dict[int, int] = field(default_factory=dict)
    drifts: dict[int, float] = field(default_factory=dict)
    ranks_a_host: int = 0  # 0: the traces do not say where a rank ran
    fault_hosts: frozenset[int] = frozenset()  # the fault is on all ranks of these hosts
    seq: bool = False
    subgroups: bool = False  # every second bucket is reduced among even and among odd ranks
    left_over: bool = True


@dataclass(kw_only=True)
class Truth:
    """What a right analysis must find."""

    waits: dict[tuple[int, int, int], int]  # (step, bucket, rank) -> ns
    transfers: dict[tuple[int, int, int], int]
    step_ns: float
    first_step: int


def random_plan(seed: int, fault: str) -> Plan:
    """Draw a schedule; a fault is several times the threshold of a straggler (5 % of the step)."""
    rng = np.random.default_rng(seed)
    world = int(rng.integers(2, 7))
    return Plan(
        world=world,
        steps=int(rng.integers(3, 7)),
        buckets=int(rng.integers(1, 6)),
        seed=seed,
        fault=fault,
        fault_rank=int(rng.integers(world)),
        fault_ns=int(rng.integers(6, 15)) * MS,
        end_jitter_ns=int(rng.integers(0, 20)) * US,
        offsets_ns={rank: int(rng.integers(-5, 5)) * int(rng.choice([US, MS, 1000 * MS])) for rank in range(world)},
        seq=bool(rng.integers(2)),
        subgroups=bool(rng.integers(2)) and world >= 4,
        left_over=bool(rng.integers(2)),
    )


class _Rank:
    """Collects one rank's events in true time; writes them in its own clock."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.plan, self.rank = plan, rank
        self.events: list[dict[str, Any]] = []
        self.correlation = 100

    def own(self, time: int) -> float:
        drift = self.plan.drifts.get(self.rank, 0.0)
        return (time + self.plan.offsets_ns.get(self.rank, 0) + round((time - _START) * drift)) / 1000

    def add(self, category: str, name: str, start: int, end: int, tid: Any, **args: Any) -> None:
        ts = self.own(start)
        pid = self.rank if category in ("kernel", "gpu_memcpy") else 4242
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": self.own(end) - ts}
        self.events.append(event | {"args": args})

    def work(self, name: str, start: int, end: int, stream: int, launched: bool, **args: Any) -> None:
        self.correlation += 1
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        if launched:
            launch = start - _LAUNCH_AHEAD
            self.add("cuda_runtime", "cudaLaunchKernel", launch, launch + US, 4242, correlation=self.correlation)
        else:
            args = {}
        args |= {"device": self.rank, "stream": stream, "correlation": self.correlation}
        self.add(category, name, start, end, stream, **args)


def simulate(plan: Plan, folder: Path) -> Truth:
    """Write one trace a rank into `folder` and return the truth."""
    rng = np.random.default_rng(plan.seed)
    ranks = [_Rank(plan, rank) for rank in range(plan.world)]
    begin = np.full(plan.world, _START)
    base = rng.integers(2, 6, size=plan.buckets + 2) * MS  # forward, each bucket's backward, optimizer
    transfers = rng.integers(1, 4, size=plan.buckets) * 300 * US
    truth = Truth(waits={}, transfers={}, step_ns=0, first_step=4)
    ends: list[int] = []
    for step in range(3, 4 + plan.steps):  # step 3 lies before the window
        begin = _step(plan, ranks, step, begin, base, transfers, rng, truth)
        ends.append(int(begin.max()))
    truth.step_ns = float(np.diff(ends).mean())
    for rank in ranks:
        _write(rank, folder)
    return truth


def _planted(plan: Plan, rank: int, step: int, kind: str) -> int:
    here = plan.fault_steps is None or step in plan.fault_steps
    there = rank // plan.ranks_a_host in plan.fault_hosts if plan.fault_hosts else rank == plan.fault_rank
    return plan.fault_ns if plan.fault == kind and there and here else 0


def _step(
    plan: Plan,
    ranks: list[_Rank],
    step: int,
    begin: np.ndarray,
    base: np.ndarray,
    transfers: np.ndarray,
    rng: np.random.Generator,
    truth: Truth,
) -> np.ndarray:
    window = step >= truth.first_step
    jitter = rng.integers(0, 60, size=(plan.world, plan.buckets + 2)) * US
    clock = begin.copy()
    for rank, log in enumerate(ranks):
        wait = 50 * US + _planted(plan, rank, step, "data")
        gap = 30 * US + _planted(plan, rank, step, "host")
        copy = 40 * US + _planted(plan, rank, step, "copy")
        start = int(clock[rank])
        if window:
            log.add("user_annotation", "data_wait", start, start + wait, 4242)
        at = start + wait + gap
        log.work("Memcpy HtoD (Pinned -> Device)", at, at + copy, 7, window)
        forward = int(base[0] + jitter[rank, 0]) + _planted(plan, rank, step, "compute")
        log.work("gemm_forward", at + copy, at + copy + forward, 7, window)
        clock[rank] = at + copy + forward
    comm_free = clock.copy()
    for bucket in range(plan.buckets):
        for rank, log in enumerate(ranks):
            end = int(clock[rank] + base[1 + bucket] + jitter[rank, 1 + bucket])
            log.work("gemm_backward", int(clock[rank]), end, 7, window)
            clock[rank] = end
        comm_free = _reduce(plan, ranks, step, bucket, clock, comm_free, int(transfers[bucket]), rng, truth, window)
    for rank, log in enumerate(ranks):
        start = int(max(clock[rank], comm_free[rank]))
        end = start + int(base[-1] + jitter[rank, -1])
        log.work("adam", start, end, 7, window)
        if window:
            name = f"ProfilerStep#{step}"
            host = (int(begin[rank]) - _LAUNCH_AHEAD, end - _LAUNCH_AHEAD)
            log.add("user_annotation", name, *host, 4242)
        clock[rank] = end
    return clock


def _reduce(
    plan: Plan,
    ranks: list[_Rank],
    step: int,
    bucket: int,
    ready: np.ndarray,
    free: np.ndarray,
    transfer: int,
    rng: np.random.Generator,
    truth: Truth,
    window: bool,
) -> np.ndarray:
    start = np.maximum(ready, free)
    finished = free.copy()
    split = plan.subgroups and bucket % 2 == 1
    groups = [list(range(0, plan.world, 2)), list(range(1, plan.world, 2))] if split else [list(range(plan.world))]
    for number, members in enumerate(groups):
        last = int(max(start[rank] for rank in members))
        for rank in members:
            end = last + transfer + int(rng.integers(0, plan.end_jitter_ns + 1))
            metadata: dict[str, Any] = {
                "Collective name": "allreduce",
                "In msg nelems": 1000 * (bucket + 1),
                "Out msg nelems": 1000 * (bucket + 1),
                "Group size": len(members),
                "dtype": "Float",
                "Process Group Name": str(number + 1 if split else 0),
                "Process Group Ranks": json.dumps(members),
            }
            if plan.seq:
                metadata["Seq"] = step * plan.buckets + bucket
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            ranks[rank].work(name, int(start[rank]), end, 20 + number + split, window, **metadata)
            finished[rank] = end
            if window:
                truth.waits[step, bucket, rank] = last - int(start[rank])
                truth.transfers[step, bucket, rank] = end - last
    return finished


def _write(log: _Rank, folder: Path) -> None:
    """Write the file as a profiler would, with some records left over from before the window."""
    rng = np.random.default_rng(log.plan.seed * 1000 + log.rank)
    opened = next(event["ts"] for event in log.events if event["name"] == "ProfilerStep#4")
    device = ("kernel", "gpu_memcpy")
    before = [e for e in log.events if e["cat"] in device and e["ts"] < opened]
    kept = [e for e in log.events if e["cat"] not in device or e["ts"] >= opened]
    count = int(rng.integers(1, len(before) + 1)) if log.plan.left_over else 0
    each = log.plan.ranks_a_host
    document: dict[str, Any] = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": log.rank, "world_size": log.plan.world},
        "baseTimeNanoseconds": _BASE,
        **({"rankscope_boot_id": "boot", "rankscope_host": f"h{log.rank // each}"} if each else {}),
        "traceEvents": [*(before[-count:] if count else []), *kept],
    }
    (folder / f"rank{log.rank}.json").write_text(json.dumps(document))
