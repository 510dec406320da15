"""The types of `summary.json`, from which its JSON Schema is made (docs/summary.schema.json).

Times are in ms unless the key says otherwise. An unknown number is null, and `warnings` says why; never 0, never NaN.
"""

import json
from pathlib import Path
from typing import Any, Literal

import msgspec

from rankscope.analysis.explain.finding import Finding
from rankscope.analysis.job.slow_steps import SlowSteps
from rankscope.analysis.measure.breakdown import PARTS
from rankscope.analysis.measure.dimensions import Dimension, ShardedLayer
from rankscope.analysis.measure.late_group import LateGroup
from rankscope.analysis.measure.pipeline_stages import Pipeline
from rankscope.analysis.measure.step_metrics import STEP_METRICS
from rankscope.analysis.measure.stragglers import VerdictName
from rankscope.analysis.verify.plain_pass import Throughput
from rankscope.analysis.verify.two_profilers import Agreement

SCHEMA = 2


class AlignmentSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How the clocks of the ranks were aligned (docs/metrics.md, "One clock"); keys of dicts are ranks."""

    method: str
    reference_rank: int
    offset_us: dict[str, float]
    drift_ppm: dict[str, float | None]
    residual_us: dict[str, float | None]
    end_spread_us: dict[str, float | None]
    error_bound_us: float | None
    feasible_width_us: float | None
    causality_violations: int
    probes: dict[str, dict[str, float]] | None
    unaligned_ranks: list[int]


# One row per rank: means over the analysed steps. The metrics are those of measure/step_metrics.py.
RankSummary = msgspec.defstruct(
    "RankSummary",
    [
        ("rank", int),
        *[(metric.name, float | None) for metric in STEP_METRICS],
        ("breakdown_ms", msgspec.defstruct("Breakdown", [(part, float | None) for part in PARTS])),
    ],
)


class CollectiveSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one group, kind and size."""

    group: str | None
    dimension: str
    kind: str
    bytes: int | None
    count: int
    group_size: int | None
    hosts: int | None
    transfer_ms_p50: float | None
    transfer_clockfree_ms_p50: float | None
    wait_ms_p50: float | None
    duration_ms_p50: float | None
    busbw_GBs: float | None
    of_ceiling: float | None
    matched: int
    unmatched: int


class LateStep(msgspec.Struct, frozen=True, kw_only=True):
    """A late rank of one step. Several ranks may be late in one step."""

    step: int
    rank: int
    lateness_ms: float | None
    cause: str | None


class TracedVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Which rank is late in the traced steps."""

    verdict: VerdictName
    rank: int | None
    ranks: list[int]
    cause: str | None
    cause_share: dict[str, float]
    lateness_ms: float | None
    steps_late: int
    steps_judged: int
    reason: str | None
    per_step: list[LateStep]


class StragglerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Which rank is late, how often, by how much, how surely and why; `traced` is the verdict of the trace alone.

    `ranks` are late together, and `rank` is the latest of them. `group` is what exactly they are within the job: a
    tensor group, a stage of a pipeline; null if they are neither. `window` is where this comes from: `timed` or `plain`
    steps without a profiler, or the `trace` if there are none.
    """

    window: Literal["timed", "plain", "trace"]
    verdict: VerdictName
    rank: int | None
    ranks: list[int]
    group: LateGroup | None
    cause: str | None
    part: str | None
    lateness_ms: float | None
    lateness_interval_ms: list[float] | None
    chance: float | None
    steps_late: int
    steps_judged: int
    slowdown: float | None
    reason: str | None
    per_step: list[LateStep]
    traced: TracedVerdict


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """`summary.json`."""

    schema: int = SCHEMA
    status: Literal["ok", "ok_with_warnings", "partial"]
    run: dict[str, str]  # what was run, as far as the recording says it: job, batch, ranks, arithmetic, versions, ...
    source: str | None  # kineto | nsys; null: nothing was traced
    pass_name: str | None = msgspec.field(name="pass")
    warnings: list[dict[str, Any]]
    world_size: int
    ranks: list[int]
    missing_ranks: list[int]
    steps: list[int]
    alignment: AlignmentSummary | None
    per_rank: list[RankSummary]  # type: ignore[valid-type]
    totals: list[dict[str, Any]]
    devices: list[dict[str, Any]]  # further devices of processes that drive several: measure/devices.py
    hosts: list[dict[str, Any]]
    collectives: list[CollectiveSummary]
    dimensions: list[Dimension]
    sharded_layers: list[ShardedLayer]
    pipelines: list[Pipeline]
    stragglers: StragglerSummary
    loader: list[dict[str, Any]]
    memory: list[dict[str, Any]]
    slow_steps: SlowSteps | None
    findings: list[Finding]
    throughput: Throughput | None
    profiler_overhead: dict[str, float | None]
    profiler_overhead_interval: dict[str, list[float] | None]
    agreement: Agreement | None
    versions: dict[str, str]


class ErrorSummary(msgspec.Struct, frozen=True, kw_only=True):
    """`summary.json` if there are no numbers."""

    schema: int = SCHEMA
    status: Literal["error"] = "error"
    source: str
    warnings: list[dict[str, Any]]
    versions: dict[str, str]


def json_schema() -> dict[str, Any]:
    kinds, parts = msgspec.json.schema_components([Summary, ErrorSummary], ref_template="#/$defs/{name}")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "anyOf": list(kinds), "$defs": parts}


def schema_text() -> str:
    """Return the content of docs/summary.schema.json."""
    return json.dumps(json_schema(), indent=1) + "\n"


if __name__ == "__main__":
    Path("docs/summary.schema.json").write_text(schema_text(), encoding="utf-8")
