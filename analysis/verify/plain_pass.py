"""What the plain pass says: throughput, memory, and whether a straggler seen under the profiler is there without it.

Comes in: `steps.parquet` and `rank.json` of each rank. Goes out: plain numbers, None where the pass has none.
"""

import msgspec
import numpy as np

from rankscope.analysis.core.table import Column
from rankscope.analysis.core.units import percentiles
from rankscope.analysis.measure.stragglers import Verdict
from rankscope.analysis.read.pass_steps import PassSteps
from rankscope.analysis.verify.gpu_peaks import dense_peak_flops
from rankscope.conf import RunConfig

_CONFIRMED = 0.5  # share of the lateness that the plain pass must show too


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the job is without a profiler."""

    step_ms_p50: float
    samples_per_s: float | None
    mfu: float | None
    pass_name: str = msgspec.field(default="plain", name="pass")
    latency: dict[str, float | None] | msgspec.UnsetType = msgspec.UNSET  # of inference: p50_ms, p95_ms, p99_ms


def throughput(plain: PassSteps, config: RunConfig) -> Throughput | None:
    """Return step time (ms), samples/s and MFU of the plain pass, in inference p50 to p99; None without a step."""
    step_ns = plain.step_ns()
    if step_ns is None or len(plain.ranks) < config.world_size:
        return None
    samples = samples_per_step(plain, config)
    samples_per_s = None if samples is None else samples / (step_ns * 1e-9)
    first = next(iter(plain.info.values()))
    peak = None if config.script is not None else dense_peak_flops(first.get("device_name"), config.precision.name)
    flops = first.get("flops_per_sample")
    mfu = None
    if peak is not None and samples_per_s is not None and isinstance(flops, int | float):
        mfu = samples_per_s * flops / (config.world_size * peak)
    return Throughput(
        step_ms_p50=round(step_ns * 1e-6, 4),
        samples_per_s=None if samples_per_s is None else round(samples_per_s, 3),
        mfu=None if mfu is None else round(mfu, 4),
        latency=percentiles(step_times(plain)) if config.mode == "inference" else msgspec.UNSET,
    )


def samples_per_step(passed: PassSteps, config: RunConfig) -> float | None:
    """Return the samples of all ranks in a step: configured, or of a script as its loaders gave them; None: unknown."""
    if config.script is None:
        return config.samples_per_step
    counts = [info.get("samples_per_step") for info in passed.info.values()]
    known = [count for count in counts if isinstance(count, int | float)]
    return sum(known) if len(known) == len(counts) else None


def step_times(passed: PassSteps) -> Column:
    """Return the job's step times of one pass (ms): the median over ranks of each step."""
    for column in ("device_ns", "host_ns"):
        rows = [columns[column] for columns in passed.ranks.values() if column in columns]
        if rows and len({len(row) for row in rows}) == 1 and not np.isnan(rows).all():
            times = np.median(np.array(rows), axis=0) * 1e-6
            return np.asarray(times[~np.isnan(times)])
    return np.zeros(0)


def confirm(verdict: Verdict, plain: PassSteps) -> bool | None:
    """Return whether the plain pass shows the late rank too; None when it cannot tell.

    It shows in the rank's own segments, or in the others' backward pass, which lasts until the late rank's gradients
    have come. A slow backward cannot be seen there: the all-reduces at its end equalise the ranks' times.
    """
    rank, lateness_ns, cause = verdict.rank, verdict.lateness_ns, verdict.cause
    columns = {"compute": "forward_ns", "data": "data_wait_ns", "host": "launch_ns", "copy": "h2d_ns"}
    if rank is None or lateness_ns is None or rank not in plain.ranks or cause not in columns:
        return None
    own, waited = _excess(plain, rank, columns[cause]), _excess(plain, rank, "backward_ns")
    known = [value for value in (own, None if waited is None else -waited) if value is not None]
    if own is None or not known:
        return None
    if max(known) >= _CONFIRMED * lateness_ns:
        return True
    return None if cause == "compute" else False


def _excess(plain: PassSteps, rank: int, column: str) -> float | None:
    own = plain.median(rank, column)
    others = [plain.median(other, column) for other in plain.ranks if other != rank]
    known = [value for value in others if value is not None]
    return own - float(np.median(known)) if own is not None and known else None
