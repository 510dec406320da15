"""Calculates how well a job scales against one GPU, with intervals, and where the loss went.

Input: `Measured` points of a sweep (plain throughput, step times by repeat, breakdown of the traced step). Output:
efficiencies, loss waterfalls, advice. Pure functions; definitions in docs/metrics.md. A point without a baseline of the
same model, arithmetic, batch and GPU gets null, never the nearest baseline.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.sweep import job_names

PARTS = ("compute", "exposed_transfer", "exposed_wait", "copy", "data_stall", "host_gap")
_DRAWS = 1000
_BLOCK = 5  # consecutive steps resampled together, because the errors of neighbours are correlated
_LEVEL = (2.5, 97.5)  # percent
_KNEE = 0.05  # gain in throughput per doubling of the batch, below which throughput has stopped growing

Steps = list[NDArray[np.float64]]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a sweep, with what scaling needs. Points may be compared if their `job` is equal."""

    id: str
    job: Any  # model, arithmetic, GPU, loader, ...: everything except world size, batch and DDP
    world_size: int
    rank_batch: int  # samples of one rank per step, over its micro-steps
    ddp: bool
    samples_per_s: float
    steps_ms: Steps = []  # for each repeat of the plain pass
    parts_ms: dict[str, float | None] | None = None  # breakdown of the traced step, mean over ranks

    @property
    def step_ms(self) -> float:
        """The step time that corresponds to the throughput (ms)."""
        return 1000 * self.rank_batch * self.world_size / self.samples_per_s

    @property
    def global_batch(self) -> int:
        """The samples of all ranks per step."""
        return self.rank_batch * self.world_size


class Efficiency(msgspec.Struct, frozen=True, kw_only=True):
    """One point against its baselines; null if there is none."""

    id: str
    weak: float | None = None  # T_1 / T_N at the same batch per GPU
    weak_interval: tuple[float, float] | None = None
    weak_against_ddp: float | None = None  # the same against DDP with world size 1
    strong_speedup: float | None = None  # T_1 / T_N at the same global batch
    strong: float | None = None  # speed-up / N
    strong_interval: tuple[float, float] | None = None


def efficiencies(points: Sequence[Measured]) -> list[Efficiency]:
    """Return weak and strong efficiency of every point with more than one rank, in the points' order."""
    return [_efficiency(point, points) for point in points if point.world_size > 1]


def _efficiency(point: Measured, points: Sequence[Measured]) -> Efficiency:
    weak = baseline(point, points, rank_batch=point.rank_batch)
    with_ddp = baseline(point, points, rank_batch=point.rank_batch, ddp=True)
    strong = baseline(point, points, rank_batch=point.global_batch)
    ranks = point.world_size
    speedup = None if strong is None else strong.step_ms / point.step_ms
    return Efficiency(
        id=point.id,
        weak=None if weak is None else weak.step_ms / point.step_ms,
        weak_interval=None if weak is None else ratio_interval(weak.steps_ms, point.steps_ms),
        weak_against_ddp=None if with_ddp is None else with_ddp.step_ms / point.step_ms,
        strong_speedup=speedup,
        strong=None if speedup is None else speedup / ranks,
        strong_interval=None if strong is None else ratio_interval(strong.steps_ms, point.steps_ms, 1 / ranks),
    )


def baseline(point: Measured, points: Sequence[Measured], *, rank_batch: int, ddp: bool = False) -> Measured | None:
    """Return the one-GPU point of the same job at this batch, with or without DDP; None if the sweep has none."""
    for other in points:
        if (other.world_size, other.rank_batch, other.ddp, other.job) == (1, rank_batch, ddp, point.job):
            return other
    return None


# --- intervals -----------------------------------------------------------------------------------------------


def interval(
    statistic: Callable[..., float], *samples: Steps, draws: int = _DRAWS, seed: int = 0
) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of a statistic of the samples' medians; None if a sample has no steps.

    Repeats are resampled, and within each repeat blocks of neighbouring steps.
    """
    if any(not sample or min(map(len, sample)) == 0 for sample in samples):
        return None
    rng = np.random.default_rng(seed)
    drawn = [[_resampled_median(sample, rng) for _ in range(draws)] for sample in samples]
    low, high = np.percentile([statistic(*values) for values in zip(*drawn, strict=True)], _LEVEL)
    return float(low), float(high)


def ratio_interval(above: Steps, below: Steps, factor: float = 1.0) -> tuple[float, float] | None:
    """Return the interval of factor x median(above) / median(below)."""
    return interval(lambda a, b: factor * a / b, above, below)


def _resampled_median(sample: Steps, rng: np.random.Generator) -> float:
    chosen = [sample[index] for index in rng.integers(len(sample), size=len(sample))]
    blocks = []
    for steps in chosen:
        size = min(_BLOCK, len(steps))
        starts = rng.integers(len(steps) - size + 1, size=-(-len(steps) // size))
        blocks += [steps[start : start + size] for start in starts]
    return float(np.median(np.concatenate(blocks)))


# --- where the loss went -------------------------------------------------------------------------------------


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """From the ideal step to the measured one (ms). `losses_ms` and `rest_ms` sum to measured - ideal."""

    id: str
    kind: str  # weak | strong
    ideal_ms: float
    measured_ms: float
    losses_ms: dict[str, float]
    rest_ms: float

    @property
    def explained(self) -> float | None:
        """The share of the loss that is not `rest_ms`; None if nothing was lost."""
        lost = self.measured_ms - self.ideal_ms
        return 1 - abs(self.rest_ms) / lost if lost > 0 else None


def waterfalls(points: Sequence[Measured]) -> list[Waterfall]:
    """Return the loss waterfalls of every point with more than one rank that has baselines and traces."""
    found = []
    for point in points:
        same = baseline(point, points, rank_batch=point.rank_batch)
        if point.world_size < 2 or same is None:
            continue
        found.append(_waterfall(point, same, "weak", same.step_ms, {}))
        whole = baseline(point, points, rank_batch=point.global_batch)
        if whole is not None:
            ideal = whole.step_ms / point.world_size
            found.append(_waterfall(point, same, "strong", ideal, {"smaller_batch": same.step_ms - ideal}))
    return found


def _waterfall(point: Measured, one: Measured, kind: str, ideal_ms: float, first: dict[str, float]) -> Waterfall:
    """Compare the parts of the two steps, each breakdown scaled to its plain step; unknown parts count as rest."""
    many, single = _scaled(point), _scaled(one)
    losses = dict(first)
    for part in PARTS:
        after, before = many.get(part), single.get(part)
        if after is not None and before is not None:
            losses["compute_inflation" if part == "compute" else part] = after - before
    rest = point.step_ms - ideal_ms - sum(losses.values())
    return Waterfall(
        id=point.id, kind=kind, ideal_ms=ideal_ms, measured_ms=point.step_ms, losses_ms=losses, rest_ms=rest
    )


def _scaled(point: Measured) -> dict[str, float | None]:
    if point.parts_ms is None:
        return {}
    total = sum(value for value in point.parts_ms.values() if value is not None)
    if total <= 0 or any(value is None for value in point.parts_ms.values()):
        return {}
    return {name: value / total * point.step_ms for name, value in point.parts_ms.items() if value is not None}


# --- advice --------------------------------------------------------------------------------------------------


def advice(points: Sequence[Measured], target: float = 0.8) -> list[str]:
    """Return the advice of a sweep: the batch at which throughput stops growing, and where efficiency falls."""
    names = dict.fromkeys((point.id for point in points), "")
    if len(_distinct(point.job for point in points)) > 1:
        told = job_names.names([point.job for point in points])
        names = {point.id: f"{name}: " for point, name in zip(points, told, strict=True)}
    return [*_batch_advice(points, names), *_world_advice(points, target, names)]


def _batch_advice(points: Sequence[Measured], names: dict[str, str]) -> list[str]:
    lines = []
    for job, ranks in _distinct(
        (point.job, point.world_size) for point in points if point.ddp or point.world_size == 1
    ):
        same = [p for p in points if p.job == job and p.world_size == ranks and (p.ddp or ranks == 1)]
        by_batch = {point.rank_batch: point for point in same}
        for small, large in itertools.pairwise(sorted(by_batch)):
            growth, between = _growth(by_batch[small], by_batch[large])
            if max(growth, *between) < _KNEE:
                where = f"{names[same[0].id]}{ranks} rank{'s' if ranks > 1 else ''}"
                gains = f"{growth:+.1%} ({between[0]:+.1%} to {between[1]:+.1%}) per doubling after it"
                lines.append(f"{where}: throughput stops growing at a batch of {small} per rank ({gains})")
                break
    return lines


def _growth(small: Measured, large: Measured) -> tuple[float, tuple[float, float]]:
    """Return by how much throughput grows per doubling of the batch, and the interval of that."""
    factor, doublings = large.rank_batch / small.rank_batch, float(np.log2(large.rank_batch / small.rank_batch))
    ratio = large.samples_per_s / small.samples_per_s
    low, high = ratio_interval(small.steps_ms, large.steps_ms, factor) or (ratio, ratio)
    return (ratio - 1) / doublings, ((low - 1) / doublings, (high - 1) / doublings)


def _world_advice(points: Sequence[Measured], target: float, names: dict[str, str]) -> list[str]:
    lines = []
    found = {item.id: item for item in efficiencies(points)}
    for kind in ("weak", "strong"):
        for job, batch in _distinct((p.job, p.rank_batch if kind == "weak" else p.global_batch) for p in points):
            same = sorted(
                (p for p in points if p.job == job and p.id in found and batch in (p.rank_batch, p.global_batch)),
                key=lambda p: p.world_size,
            )
            for point in same:
                own = point.rank_batch if kind == "weak" else point.global_batch
                value, between = getattr(found[point.id], kind), getattr(found[point.id], f"{kind}_interval")
                if own == batch and value is not None and max([value, *(between or ())]) < target:
                    what = f"{batch} per rank" if kind == "weak" else f"{batch} over all ranks"
                    lines.append(
                        f"{names[point.id]}{kind} scaling, batch {what}: efficiency falls below {target:.0%} at "
                        f"{point.world_size} ranks ({value:.1%}{_between(between)})"
                    )
                    break
    return lines


def _between(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f", {interval[0]:.1%} to {interval[1]:.1%}"


def _distinct(items: Any) -> list[Any]:
    result: list[Any] = []
    for item in items:
        if item not in result:
            result.append(item)
    return result
