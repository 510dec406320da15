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
    fault_ranks: frozenset[int] = frozenset()  # the fault is on all of these ranks
    tensor: int = 1  # ranks of a tensor group: they reduce inside forward; buckets are reduced among the others
    metadata: bool = True  # False: kernels of collectives have nothing but their name
    seq_of_process: bool = False  # Seq counts the calls of all groups of a process, and rank 0 has one group more
    lost_on: int | None = None  # on this rank the profiler lost a part of the records
    restart: bool = False  # the numbers of steps begin again in the middle
    everywhere: dict[str, int] = field(default_factory=dict)  # further time (ns) by kind, on every rank in every step
    transfers: bool = True  # False: reducing takes no time
    linked: bool = True  # False: kernels of collectives do not say which call launched them


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
        self.called = 0

    def own(self, time: int) -> float:
        drift = self.plan.drifts.get(self.rank, 0.0)
        return (time + self.plan.offsets_ns.get(self.rank, 0) + round((time - _START) * drift)) / 1000

    def add(self, category: str, name: str, start: int, end: int, tid: Any, **args: Any) -> None:
        ts = self.own(start)
        pid = self.rank if category in ("kernel", "gpu_memcpy") else 4242
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": self.own(end) - ts}
        self.events.append(event | {"args": args})

    def seq(self, step: int, call: int, calls: int) -> int:
        """Return the number of the next call: of its group, or of the process."""
        self.called += 1
        if not self.plan.seq_of_process:
            return step * calls + call
        return self.called + (step if self.rank == 0 else 0)

    def work(self, name: str, start: int, end: int, stream: int, launched: bool, **args: Any) -> None:
        self.correlation += 1
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        if launched:
            launch = start - _LAUNCH_AHEAD
            self.add("cuda_runtime", "cudaLaunchKernel", launch, launch + US, 4242, correlation=self.correlation)
        else:
            args = {}
        linked = self.plan.linked or not name.startswith("nccl")
        args |= {"device": self.rank, "stream": stream, "correlation": self.correlation if linked else 0}
        self.add(category, name, start, end, stream, **args)


def simulate(plan: Plan, folder: Path) -> Truth:
    """Write one trace a rank into `folder` and return the truth."""
    rng = np.random.default_rng(plan.seed)
    ranks = [_Rank(plan, rank) for rank in range(plan.world)]
    begin = np.full(plan.world, _START)
    base = rng.integers(2, 6, size=plan.buckets + 2) * MS  # forward, each bucket's backward, optimizer
    transfers = rng.integers(1, 4, size=plan.buckets) * 300 * US + plan.everywhere.get("transfer", 0)
    transfers = transfers * int(plan.transfers)
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
    there = rank in plan.fault_ranks if plan.fault_ranks else there
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
        more = plan.everywhere
        wait = 50 * US + _planted(plan, rank, step, "data") + more.get("data", 0)
        gap = 30 * US + _planted(plan, rank, step, "host") + more.get("host", 0)
        copy = 40 * US + _planted(plan, rank, step, "copy") + more.get("copy", 0)
        start = int(clock[rank])
        if window:
            log.add("user_annotation", "data_wait", start, start + wait, 4242)
        at = start + wait + gap
        log.work("Memcpy HtoD (Pinned -> Device)", at, at + copy, 7, window)
        forward = int(base[0] + jitter[rank, 0]) + _planted(plan, rank, step, "compute")
        log.work("gemm_forward", at + copy, at + copy + forward, 7, window)
        clock[rank] = _hold_up(log, at + copy + forward, forward, more)
    if plan.tensor > 1:
        _reduce_tensors(plan, ranks, step, clock, rng, window)
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
            name = f"ProfilerStep#{_number(plan, truth.first_step, step)}"
            host = (int(begin[rank]) - _LAUNCH_AHEAD, end - _LAUNCH_AHEAD)
            log.add("user_annotation", name, *host, 4242)
        clock[rank] = end
    return clock


def _hold_up(log: _Rank, at: int, forward: int, more: dict[str, int]) -> int:
    """Let the host wait for the device, or the allocator for the driver; the device then has nothing to do."""
    sync, malloc = min(forward, more.get("sync", 0)), more.get("malloc", 0)
    if sync:  # blocks during the forward pass, as long as the device is idle afterwards
        log.correlation += 1
        log.add("cuda_runtime", "cudaDeviceSynchronize", at - sync, at, 4242, correlation=log.correlation)
    if malloc:
        log.correlation += 1
        log.add("cuda_runtime", "cudaMalloc", at + sync, at + sync + malloc, 4242, correlation=log.correlation)
    return at + sync + malloc


_NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def _number(plan: Plan, first: int, step: int) -> int:
    """Return the number that the trace gives to a step."""
    half = plan.steps // 2
    return step - half if plan.restart and step - first >= half else step


def _metadata(plan: Plan, group: str, members: list[int], elements: int, seq: int) -> dict[str, Any]:
    if not plan.metadata:
        return {}
    found: dict[str, Any] = {
        "Collective name": "allreduce",
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": len(members),
        "dtype": "Float",
        "Process Group Name": group,
        "Process Group Ranks": json.dumps(members),
    }
    return found | ({"Seq": seq} if plan.seq else {})


def _reduce_tensors(
    plan: Plan, ranks: list[_Rank], step: int, clock: np.ndarray, rng: np.random.Generator, window: bool
) -> None:
    """Reduce inside each tensor group, which holds up its members until the last one has come."""
    for first in range(0, plan.world, plan.tensor):
        members = list(range(first, first + plan.tensor))
        last = int(clock[members].max())
        for rank in members:
            end = last + 200 * US + int(rng.integers(0, plan.end_jitter_ns + 1))
            metadata = _metadata(plan, f"tp{first}", members, 500, ranks[rank].seq(step, 0, 1))
            ranks[rank].work(_NCCL, int(clock[rank]), end, 30, window, **metadata)
            clock[rank] = end


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
    if plan.tensor > 1:
        groups = [list(range(place, plan.world, plan.tensor)) for place in range(plan.tensor)]
    for number, members in enumerate(groups):
        last = int(max(start[rank] for rank in members))
        for rank in members:
            end = last + transfer + int(rng.integers(0, plan.end_jitter_ns + 1))
            named = str(number + 1 if split else f"dp{number}" if plan.tensor > 1 else 0)
            seq = ranks[rank].seq(step, bucket, plan.buckets)
            metadata = _metadata(plan, named, members, 1000 * (bucket + 1), seq)
            ranks[rank].work(_NCCL, int(start[rank]), end, 20 + number + split, window, **metadata)
            finished[rank] = end
            if window:
                truth.waits[step, bucket, rank] = last - int(start[rank])
                truth.transfers[step, bucket, rank] = end - last
    return finished


def _without_a_buffer(events: list[dict[str, Any]], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Drop a third of the device's records, one after another, as a profiler does that runs out of buffers."""
    device = sorted((e for e in events if e["cat"] in ("kernel", "gpu_memcpy")), key=lambda event: float(event["ts"]))
    begin = int(rng.integers(0, len(device)))
    lost = {id(event) for event in device[begin : begin + len(device) // 3]}
    return [event for event in events if id(event) not in lost]


def _write(log: _Rank, folder: Path) -> None:
    """Write the file as a profiler would, with some records left over from before the window."""
    rng = np.random.default_rng(log.plan.seed * 1000 + log.rank)
    opened = next(event["ts"] for event in log.events if event["name"] == "ProfilerStep#4")
    device = ("kernel", "gpu_memcpy")
    before = [e for e in log.events if e["cat"] in device and e["ts"] < opened]
    kept = [e for e in log.events if e["cat"] not in device or e["ts"] >= opened]
    count = int(rng.integers(1, len(before) + 1)) if log.plan.left_over else 0
    if log.plan.lost_on == log.rank:
        kept = _without_a_buffer(kept, rng)
    each = log.plan.ranks_a_host
    document: dict[str, Any] = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": log.rank, "world_size": log.plan.world},
        "baseTimeNanoseconds": _BASE,
        **({"rankscope_boot_id": "boot", "rankscope_host": f"h{log.rank // each}"} if each else {}),
        "traceEvents": [*(before[-count:] if count else []), *kept],
    }
    (folder / f"rank{log.rank}.json").write_text(json.dumps(document))


def random_job(seed: int) -> Plan:
    """Draw a job of 2 to 64 ranks with any number of the oddities of real traces, and no fault or one."""
    rng = np.random.default_rng([seed, 14])
    tensor = int(rng.choice([1, 1, 2, 4]))
    world = tensor * int(rng.choice([2, 2, 3, 4, 5, 6, 8, 12, 16]))
    fault = str(rng.choice(["none", *FAULTS]))
    # Late are whole tensor groups or single ranks: in two of three jobs with several late ones at most half of them.
    several, most = rng.random() < 0.5, rng.random() < 1 / 3
    late = rng.permutation(world)[: int(rng.integers(1, max(1, world - 1 if most else world // 2) + 1))].tolist()
    late = late if several else late[:1]
    if tensor > 1:
        groups = world // tensor
        chosen = rng.permutation(groups)[: int(rng.integers(1, max(1, groups - 1 if most else groups // 2) + 1))]
        late = [group * tensor + place for group in chosen for place in range(tensor)]
    offset = [0, 0, 3 * US, MS, 1000 * MS]
    return Plan(
        world=world,
        steps=int(rng.integers(4, 8)),
        buckets=int(rng.integers(1, 4)),
        seed=seed,
        fault=fault,
        fault_ns=int(rng.integers(6, 15)) * MS,
        fault_ranks=frozenset(int(rank) for rank in late) if fault != "none" else frozenset(),
        end_jitter_ns=int(rng.integers(0, 20)) * US,
        offsets_ns={rank: int(rng.integers(-5, 5)) * int(rng.choice(offset)) for rank in range(world)},
        seq=bool(rng.random() < 0.6),
        seq_of_process=bool(rng.random() < 0.25),
        metadata=bool(rng.random() < 0.8),
        linked=bool(rng.random() < 0.85),
        lost_on=int(rng.integers(world)) if rng.random() < 0.1 else None,
        restart=bool(rng.random() < 0.15),
        tensor=tensor,
        left_over=bool(rng.random() < 0.5),
    )


def answer(plan: Plan, found: dict[str, Any]) -> str:
    """Return how the verdict of a summary compares with the truth: right, undetermined, or wrong and how."""
    if found["verdict"] == "undetermined":
        return "undetermined"
    late = sorted(plan.fault_ranks)
    if not late:
        return "right" if found["verdict"] == "none" else "wrong: late without a fault"
    if found["verdict"] == "none":
        return "wrong: a late rank is missed"
    if found["ranks"] != late:
        open_end = found["reason"] is not None and set(found["ranks"]) <= set(late)
        return "right, others open" if open_end else "wrong: other ranks are named"
    if found["cause"] == "unexplained":
        return "right, cause open"
    return "right" if found["cause"] == plan.fault else f"wrong: {found['cause']} instead of {plan.fault}"
