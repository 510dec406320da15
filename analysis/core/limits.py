"""Every threshold of verdicts and findings: its default, its meaning, and how to set it with KEY=VALUE.

The list in docs/findings.md is generated from this module.
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """When a finding is reported, and how severe it is. Shares are of the median step unless said otherwise."""

    reported: Annotated[
        float, Meta(description="share of the step that a fix must save for a finding to be reported")
    ] = 0.03
    medium: Annotated[float, Meta(description="share of the step from which a finding is medium")] = 0.05
    high: Annotated[float, Meta(description="share of the step from which a finding is high")] = 0.10
    sync_share: Annotated[float, Meta(description="`sync_in_loop`: idle time behind waits of the host")] = 0.01
    small_kernel_us: Annotated[
        float, Meta(description="`small_kernels`: median compute kernel shorter than this (us)")
    ] = 10.0
    small_kernel_count: Annotated[float, Meta(description="`small_kernels`: at least this many kernels per step")] = 100
    no_overlap_ratio: Annotated[
        float, Meta(description="`no_overlap`: hidden share of the communication is less than this")
    ] = 0.1
    no_overlap_share: Annotated[
        float,
        Meta(description="`no_overlap`, `large_last_bucket`: exposed transfer is at least this share of the step"),
    ] = 0.01
    last_bucket_share: Annotated[float, Meta(description="`large_last_bucket`: share of the bytes")] = 0.5
    small_bucket_mb: Annotated[float, Meta(description="`small_buckets`: mean size smaller than this (MB)")] = 16.0
    small_bucket_calls: Annotated[
        float, Meta(description="`small_buckets`: at least this many all-reduces per step")
    ] = 16
    latency_factor: Annotated[
        float, Meta(description="a collective is bound by latency below this many times the time of the smallest one")
    ] = 2.0
    pageable_share: Annotated[
        float,
        Meta(description="`copy_bound`: share of the copies from or to pageable memory from which pinning is advised"),
    ] = 0.5
    matmul_share: Annotated[
        float, Meta(description="`low_tensor_core_use`: share of kernel time in matrix products")
    ] = 0.3
    tensor_share: Annotated[
        float, Meta(description="`low_tensor_core_use`: less than this share of that on tensor cores")
    ] = 0.5
    memory_bound_share: Annotated[
        float, Meta(description="`memory_bound`: share of kernel time outside matrix products")
    ] = 0.6
    compute_bound_share: Annotated[
        float, Meta(description="`compute_bound`: share of kernel time in matrix products")
    ] = 0.6
    busy_share: Annotated[
        float, Meta(description="`memory_bound`, `compute_bound`: share of the step during which the device computes")
    ] = 0.7
    mallocs: Annotated[float, Meta(description="`memory_pressure`: driver allocations per step")] = 1.0
    late_step: Annotated[
        float, Meta(description="without a profiler: a step has a late rank from this share of the usual step on")
    ] = 0.03
    chance: Annotated[
        float, Meta(description="without a profiler: a rank is late only if chance is below this for equal ranks")
    ] = 0.003
    slow_step: Annotated[
        float, Meta(description="`slow_steps`: a step is slow if it takes this many times the usual one")
    ] = 1.5
    straggler_share: Annotated[
        float, Meta(description="a rank is late from this lateness on, as a share of the median step")
    ] = 0.05
    straggler_errors: Annotated[
        float, Meta(description="and if the lateness exceeds this many times the error bound of the common clock")
    ] = 3.0
    cause_share: Annotated[
        float, Meta(description="a cause is named if it explains this share of the lateness; otherwise it is mixed")
    ] = 2 / 3
    late_share: Annotated[
        float, Meta(description="share of the costliest rank's lateness from which another rank is named too")
    ] = 0.25
    busy_loader_share: Annotated[
        float,
        Meta(description="`data_stall`: the loader's share of CPU time in its waits from which workers need cores"),
    ] = 0.5
    cpu_got: Annotated[
        float, Meta(description="a warning is given if a rank gets less than this share of the CPU time it wants")
    ] = 0.9
    clock_share: Annotated[float, Meta(description="`throttled`: how much lower than the others' median clock")] = 0.05
    distorts: Annotated[float, Meta(description="`profiler_distorts`: traced step / plain step")] = 1.15


def parse(items: Iterable[str], base: Limits | None = None) -> Limits:
    """Return limits with the `KEY=VALUE` items applied. Raises `ValueError` (one line) for a bad key or value."""
    known = Limits.__struct_fields__
    changes = {}
    for item in items:
        key, _, value = item.partition("=")
        if key not in known:
            import difflib  # only for messages about mistakes

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
