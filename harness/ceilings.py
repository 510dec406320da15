"""Measures the best rates of this node for `rankscope ceilings`: collectives by size, copies, matrix products.

torchrun starts it as `python -m rankscope.harness.ceilings FOLDER`; rank 0 writes `FOLDER/ceilings.json`. The
collectives run over the process group that training would use. Bus bandwidth is defined as in nccl-tests
(docs/metrics.md): S is one rank's bytes for all-reduce, broadcast, reduce, all-to-all and a message, the total input
for reduce-scatter, and the total output for all-gather. With messages every rank sends to the next one. Each time is
the mean over back-to-back calls after a warm-up, and over the ranks.
"""

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rankscope.conf import load_config
from rankscope.conf.contract import bus_factor
from rankscope.conf.files import write_json
from rankscope.conf.user_cache import SCHEMA
from rankscope.harness.group.process_group import RankContext, die_with_parent, join, leave

_GPU_SIZES = tuple(1 << shift for shift in range(10, 31, 2))  # 1 KiB to 1 GiB
_CPU_SIZES = tuple(1 << shift for shift in range(10, 27, 2))  # to 64 MiB
_COLLECTIVES = ("allreduce", "broadcast", "reduce", "reducescatter", "allgather", "alltoall", "sendrecv")
_SHARED = ("reducescatter", "allgather", "alltoall")  # each rank has a part of S
_WARMUP, _CALLS = 5, 20
_COPY_BYTES = {True: 256 << 20, False: 64 << 20}
_MATMUL = {True: 8192, False: 1024}
_LAUNCHES = 1000


def main(arguments: list[str]) -> None:
    """Measure one kind after another, all ranks together."""
    die_with_parent()
    folder = Path(arguments[0])
    context = join(load_config(folder / "config.yaml"))
    properties: Any = torch.cuda.get_device_properties(context.device) if context.cuda else None
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "host": context.host,
        "device": properties.name if properties else "cpu",
        "backend": context.backend,
        "world_size": context.world_size,
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "collectives": collectives(context) if context.world_size > 1 else {},
        "matmul_TFLOPs": matmuls(context),
        "launch_us": launch_us(context),
        **copies(context),
    }
    if context.rank == 0:
        write_json(folder / "ceilings.json", found)
    leave(context)


def timed(call: Callable[[], Any], context: RankContext, calls: int = _CALLS, warmup: int = _WARMUP) -> float:
    """Return the time of one call (s), the mean over the ranks; measured by CUDA events on a GPU."""
    for _ in range(warmup):
        call()
    context.synchronize()
    context.barrier("ceilings")
    if context.cuda:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        for _ in range(calls):
            call()
        last.record()
        context.synchronize()
        took = float(first.elapsed_time(last)) / 1000 / calls
    else:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        took = (time.perf_counter() - began) / calls
    return _mean(took, context)


def _mean(value: float, context: RankContext) -> float:
    if context.control is None:
        return value
    gathered, work = context.control.gather_later(torch.tensor([value], dtype=torch.float64))
    work.wait()
    return float(torch.cat(gathered).mean())


def collectives(context: RankContext) -> dict[str, list[tuple[int, float, float]]]:
    """Return rows of (bytes S, microseconds, bus bandwidth in GB/s) for each kind that the backend supports."""
    ranks = context.world_size
    found: dict[str, list[tuple[int, float, float]]] = {}
    for kind in _COLLECTIVES:
        factor = bus_factor(kind, ranks)
        rows: list[tuple[int, float, float]] = []
        for size in _GPU_SIZES if context.cuda else _CPU_SIZES:
            try:
                took = timed(_call(kind, size, context), context)
            except (RuntimeError, NotImplementedError):  # on every rank: the backend does not have this collective
                rows = []
                break
            whole = max(1, size // 4 // ranks) * ranks * 4 if kind in _SHARED else size
            rows.append((whole, round(took * 1e6, 3), round(whole / took / 1e9 * factor, 6)))
        if rows:
            found[kind] = rows
    return found


def _call(kind: str, size: int, context: RankContext) -> Callable[[], Any]:
    """Return a function that runs a collective over `size` bytes of float32."""
    ranks = context.world_size
    share = max(1, size // 4 // ranks)
    count = share * ranks if kind in _SHARED else size // 4
    data = torch.zeros(count, device=context.device)
    other = torch.zeros(count if kind in ("alltoall", "sendrecv") else share, device=context.device)
    following, before = (context.rank + 1) % ranks, (context.rank - 1) % ranks

    def messages() -> None:
        sent = dist.P2POp(dist.isend, data, following)
        for work in dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, other, before)]):
            work.wait()

    calls: dict[str, Callable[[], Any]] = {
        "allreduce": lambda: dist.all_reduce(data),
        "broadcast": lambda: dist.broadcast(data, src=0),
        "reduce": lambda: dist.reduce(data, dst=0),
        "reducescatter": lambda: dist.reduce_scatter_tensor(other, data),
        "allgather": lambda: dist.all_gather_into_tensor(data, other),
        "alltoall": lambda: dist.all_to_all_single(other, data),
        "sendrecv": messages,
    }
    return calls[kind]


def copies(context: RankContext) -> dict[str, float | None]:
    """Return copy rates (GB/s): bytes moved to the device; bytes read plus written within one memory."""
    size = _COPY_BYTES[context.cuda]
    source, target = torch.ones(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
    began = time.perf_counter()
    for _ in range(_CALLS):
        target.copy_(source)
    host = _mean((time.perf_counter() - began) / _CALLS, context)
    found: dict[str, float | None] = {"host_GBs": round(2 * size / host / 1e9, 3)}
    if not context.cuda:
        return found | dict.fromkeys(("h2d_pinned_GBs", "h2d_pageable_GBs", "d2d_GBs"))
    pinned, device = source.pin_memory(), torch.empty(size, dtype=torch.uint8, device=context.device)
    other = torch.empty_like(device)
    rates = {
        "h2d_pinned_GBs": size / timed(lambda: device.copy_(pinned, non_blocking=True), context) / 1e9,
        "h2d_pageable_GBs": size / timed(lambda: device.copy_(source), context) / 1e9,
        "d2d_GBs": 2 * size / timed(lambda: other.copy_(device), context) / 1e9,
    }
    return found | {name: round(rate, 3) for name, rate in rates.items()}


def matmuls(context: RankContext) -> dict[str, float]:
    """Return the rate of a large square matrix product on random numbers (TFLOP/s) for each arithmetic."""
    side = _MATMUL[context.cuda]
    kinds = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    found = {}
    for name, dtype in kinds.items():
        if not context.cuda and name in ("tf32", "fp16"):
            continue
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        matrix = torch.randn(side, side, device=context.device).to(dtype)
        took = timed(lambda matrix=matrix: matrix @ matrix, context, calls=10, warmup=2)  # type: ignore[misc]
        found[name] = round(2 * side**3 / took / 1e12, 4)
    return found


def launch_us(context: RankContext) -> float:
    """Return the host's time to launch one small operator (us). A kernel must take longer to hide its launch."""
    small = torch.zeros(1, device=context.device)
    with torch.no_grad():
        for _ in range(_LAUNCHES // 10):
            small.add_(1)
        context.synchronize()
        began = time.perf_counter()
        for _ in range(_LAUNCHES):
            small.add_(1)
        took = (time.perf_counter() - began) / _LAUNCHES
        context.synchronize()
    return round(_mean(took, context) * 1e6, 3)


if __name__ == "__main__":
    main(sys.argv[1:])
