"""Latency and throughput of a run: percentiles, the knee of a curve known in closed form, steady steps alone (M03)."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.core.units import percentiles
from rankscope.analysis.read import pass_steps
from rankscope.analysis.sweep.latency import curves, knee
from rankscope.analysis.sweep.points import Point
from rankscope.analysis.sweep.report import summarise_sweep
from rankscope.analysis.sweep.scaling import Measured
from rankscope.analysis.verify import plain_pass
from rankscope.conf import RunConfig, RunDir, parse_config
from rankscope.conf.sections import DdpConfig

CASES = Path(__file__).parents[2] / "data" / "scaling"


def test_a_percentile_needs_enough_answers() -> None:
    assert percentiles(np.arange(1.0, 102.0)) == {"p50_ms": 51.0, "p95_ms": 96.0, "p99_ms": 100.0}
    assert percentiles(np.ones(99)) == {"p50_ms": 1.0, "p95_ms": 1.0, "p99_ms": None}
    assert percentiles(np.ones(19)) == {"p50_ms": 1.0, "p95_ms": None, "p99_ms": None}


@given(st.floats(0.5, 5), st.floats(0.01, 0.5), st.integers(4, 10))
def test_the_knee_of_a_fixed_cost_and_a_cost_a_sample(fixed: float, each: float, doublings: int) -> None:
    """Latency a + c b gives throughput (1 - a / t) / c: its chord's parallel touches it at t = sqrt(first x last)."""
    batches = [2**power for power in range(doublings)]
    times = [fixed + each * batch for batch in batches]
    found = knee([(time, batch / time) for time, batch in zip(times, batches, strict=True)])
    middle = math.sqrt(times[0] * times[-1])
    neighbours = max(time for time in times if time <= middle), min(time for time in times if time > middle)
    assert found is not None and times[found] in neighbours


@pytest.mark.parametrize("curve", [[], [(1, 1), (2, 2)], [(1, 5), (2, 4), (3, 3)], [(1, 1), (2, 1.2), (3, 3)]])
def test_no_knee(curve: list[tuple[float, float]]) -> None:
    """Too few points, throughput that falls, and a curve below its chord."""
    assert knee(curve) is None


def test_curves_are_named_by_what_differs() -> None:
    def point(batch: int, compile_mode: str, latency: float) -> Measured:
        job = {"mode": "inference", "compile": compile_mode, "model": {"name": "gpt"}}
        rate = 1000 * batch / latency
        steps = [np.full(50, latency), np.full(50, latency)]
        return Measured(
            id=f"{compile_mode}-{batch}", job=job, world_size=1, rank_batch=batch, ddp=False, samples_per_s=rate,
            steps_ms=steps,
        )  # fmt: skip

    rows = curves([point(8, "off", 4.0), point(1, "off", 2.0), point(4, "off", 2.5), point(1, "default", 1.0)])
    assert [(row.curve, row.batch, row.answers, row.knee) for row in rows] == [
        ("compile=off", 1, 100, False),
        ("compile=off", 4, 100, True),
        ("compile=off", 8, 100, False),
        ("compile=default", 1, 100, False),
    ]
    assert rows[0].samples_per_s == pytest.approx(500) and rows[0].p99_ms == pytest.approx(2.0)


def test_throughput_is_that_of_the_steady_unprofiled_steps(tmp_path: Path) -> None:
    """Case M03: warm-up, profiled and export steps are not throughput; what profiling costs is said apart."""
    case = json.loads((CASES / "M03-steps.json").read_text())
    wanted = json.loads((CASES / "M03-expected.json").read_text())
    run_dir = RunDir(tmp_path)
    for name, states in (("plain", {"off": "measured"}), ("torch", {"active": "active"})):
        rank_dir = run_dir.for_pass(name).rank(0)
        rank_dir.path.mkdir(parents=True)
        rank_dir.info.write_text(json.dumps({"rank": 0, "device_name": None}))
        phases = [
            "warmup" if step["n"] < case["warmup_steps"] else states.get(step["profiler"], "warmup")
            for step in case["steps"]
        ]
        times = [round(step["time_s"] * 1e9) for step in case["steps"]]
        numbers = list(range(len(phases)))
        pq.write_table(
            pa.table({"step": numbers, "phase": phases, "host_ns": pa.array(times, pa.int64())}), rank_dir.steps
        )
    config = parse_config({"world_size": case["world_size"], "batch_size": case["batch_per_gpu"]})
    steady = pass_steps.read_pass(run_dir.for_pass("plain"), "measured")
    traced = pass_steps.read_pass(run_dir.for_pass("torch"), "active")
    assert steady is not None and traced is not None
    rate = plain_pass.throughput(steady, config)
    assert rate is not None and rate.samples_per_s == pytest.approx(wanted["samples_per_s"])
    steady_ns, traced_ns = steady.step_ns(), traced.step_ns()
    assert steady_ns is not None and traced_ns is not None
    assert traced_ns == pytest.approx(wanted["profiled_step_time_s"] * 1e9)
    assert traced_ns / steady_ns - 1 == pytest.approx(wanted["profiler_overhead_ratio"])


def test_a_report_has_one_throughput_for_each_point() -> None:
    """One answer of 20 ms among nine of 10 ms: the mean is 11 ms, so 4 samples a batch are 4000 / 11 samples/s."""
    steps = [np.array([10.0] * 9 + [20.0])]
    by_median = Measured(id="a", job={}, world_size=1, rank_batch=4, ddp=False, samples_per_s=400.0, steps_ms=steps)
    config = RunConfig(mode="inference", ddp=DdpConfig(enabled=False), warmup_steps=50)
    point = Point(id="a", run_dir=None, overrides=[], baseline=False, status="completed", config=config)
    point.measured = by_median
    found = summarise_sweep([point], target=0.8)
    assert found["points"][0]["samples_per_s"] == found["latency"][0]["samples_per_s"] == pytest.approx(4000 / 11)
