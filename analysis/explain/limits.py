"""Every threshold of the findings, in one place: defaults, and KEY=VALUE from the command line."""

import difflib
from collections.abc import Iterable

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """When a finding is reported, and how severe it is. Shares are of the median step unless said otherwise."""

    reported: float = 0.03  # what a fix must bring for a finding to be reported
    medium: float = 0.05  # severity: from here on medium
    high: float = 0.10  # and from here on high
    sync_share: float = 0.01  # sync_in_loop: device idle behind waits of the host
    small_kernel_us: float = 10.0  # small_kernels: median compute kernel shorter than this
    small_kernel_count: float = 100  # and at least so many a step
    no_overlap_ratio: float = 0.1  # no_overlap: less of the communication than this is hidden
    no_overlap_share: float = 0.01  # and so much of the step is exposed transfer
    last_bucket_share: float = 0.5  # large_last_bucket: of the bytes of the step's all-reduces
    small_bucket_mb: float = 16.0  # small_buckets: mean all-reduce smaller than this
    small_bucket_calls: float = 16  # and at least so many a step
    latency_factor: float = 2.0  # a collective is latency-bound below so many times the smallest one's time
    pageable_share: float = 0.5  # copy_bound: pageable memory is named from this share of the copies on
    matmul_share: float = 0.3  # low_tensor_core_use: share of compute time in matrix products from which it matters
    tensor_share: float = 0.5  # and less of that on tensor cores
    memory_bound_share: float = 0.6  # memory_bound: share of compute time outside matrix products
    compute_bound_share: float = 0.6  # compute_bound: share of compute time inside them
    busy_share: float = 0.7  # memory_bound, compute_bound: the device computes for so much of the step
    mallocs: float = 1.0  # memory_pressure: driver allocations a step
    late_share: float = 0.25  # straggler_*: of the costliest rank's lateness, from which another is named too
    busy_loader_share: float = 0.5  # data_stall: of the wait that the loader computes, from which workers need cores
    clock_share: float = 0.05  # throttled: a late rank's clock is lower than the others' median by this
    distorts: float = 1.15  # profiler_distorts: traced step / plain step


def parse(items: Iterable[str], base: Limits | None = None) -> Limits:
    """Return limits with `KEY=VALUE` items applied; `ValueError` in one line for a key or value that cannot be."""
    known = Limits.__struct_fields__
    changes = {}
    for item in items:
        key, _, value = item.partition("=")
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise ValueError(
                f"{key}: no such limit; {f'did you mean {near[0]}?' if near else 'there are ' + ', '.join(known)}"
            )
        try:
            changes[key] = float(value)
        except ValueError:
            raise ValueError(f"{item}: must be KEY=NUMBER") from None
        if not 0 <= changes[key] < float("inf"):
            raise ValueError(f"{item}: must be a number of at least 0")
    return msgspec.structs.replace(base or Limits(), **changes)
