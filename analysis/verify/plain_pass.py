"""How fast the job is without a profiler: what the steps of the plain pass say.

Comes in: `steps.parquet` and `rank.json` of each rank. Goes out: `Throughput`, None without a step on every rank.
"""

import msgspec
import numpy as np

from rankscope.analysis.core.table import Column
from rankscope.analysis.core.units import percentiles
from rankscope.analysis.job.window import Window
from rankscope.analysis.read.pass_steps import PassSteps
from rankscope.analysis.verify.gpu_peaks import dense_peak_flops
from rankscope.conf import RunConfig


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the job is without a profiler: all samples over all time, and the steps' distribution (ms)."""

    step_ms_p50: float
    step_ms_mean: float
    step_ms_p95: float | None  # null with fewer than 20 steps
    step_ms_p99: float | None  # null with fewer than 100 steps
    steps: int
    outside_usual_share: float  # of the time: what steps take beyond the median step
    samples_per_s: float | None  # samples of a step / mean step
    mfu: float | None  # at the mean step
    pass_name: str = msgspec.field(default="plain", name="pass")
    latency: dict[str, float | None] | msgspec.UnsetType = msgspec.UNSET  # of inference: p50_ms, p95_ms, p99_ms


def throughput(plain: PassSteps, config: RunConfig | None) -> Throughput | None:
    """Return the job's speed in the plain pass; None without a step on every rank. Samples and MFU need `config`."""
    times, step_ns = step_times(plain), plain.step_ns()
    if step_ns is None or not times.sum() or len(plain.ranks) < world_size(plain, config):
        return None
    mean_ms = float(times.mean())
    samples = None if config is None else samples_per_step(plain, config)
    samples_per_s = None if samples is None else samples / (mean_ms * 1e-3)
    mfu = None if config is None or samples_per_s is None else _mfu(plain, config, samples_per_s)
    spread = percentiles(times)
    beyond = np.maximum(0.0, times - np.median(times)).sum() / times.sum()
    return Throughput(
        step_ms_p50=round(step_ns * 1e-6, 4),
        step_ms_mean=round(mean_ms, 4),
        step_ms_p95=_rounded(spread["p95_ms"]),
        step_ms_p99=_rounded(spread["p99_ms"]),
        steps=len(times),
        outside_usual_share=round(float(beyond), 4),
        samples_per_s=None if samples_per_s is None else round(samples_per_s, 3),
        mfu=None if mfu is None else round(mfu, 4),
        latency=spread if config is not None and config.mode == "inference" else msgspec.UNSET,
    )


def world_size(passed: PassSteps, config: RunConfig | None) -> int:
    """Return the number of ranks of the job, as the ranks say if the configuration is unknown."""
    if config is not None:
        return config.world_size
    said = [info.get("world_size") for info in passed.info.values()]
    return max([len(passed.ranks), *(size for size in said if isinstance(size, int))])


def _mfu(plain: PassSteps, config: RunConfig, samples_per_s: float) -> float | None:
    first = next(iter(plain.info.values()))
    peak = None if config.script is not None else dense_peak_flops(first.get("device_name"), config.precision.name)
    flops = first.get("flops_per_sample")
    if peak is None or not isinstance(flops, int | float):
        return None
    return samples_per_s * flops / (config.world_size * peak)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def samples_per_step(passed: PassSteps, config: RunConfig) -> float | None:
    """Return the samples of all ranks in a step: configured, or of a script as its loaders gave them; None: unknown."""
    if config.script is None:
        return config.samples_per_step
    counts = [info.get("samples_per_step") for info in passed.info.values()]
    known = [count for count in counts if isinstance(count, int | float)]
    return sum(known) if len(known) == len(counts) else None


def step_times(passed: PassSteps) -> Column:
    """Return the job's step times of one pass (ms): the median over ranks of each step that all of them have."""
    window = Window.of(passed)
    if window is None:
        return np.zeros(0)
    times = np.median(window.step_ns, axis=0) * 1e-6
    return np.asarray(times[~np.isnan(times)])
