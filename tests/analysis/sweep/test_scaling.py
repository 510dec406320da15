"""Scaling against one GPU: the validation case M01, arithmetic by hand, and measured efficiencies of 1 to 4 H100s."""

import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rankscope.analysis.sweep.points import Point, run_point, tell_jobs_apart
from rankscope.analysis.sweep.scaling import Measured, advice, efficiencies, interval, waterfalls
from rankscope.analysis.sweep.words import headline
from rankscope.analysis.verify.gpu_peaks import dense_peak_flops
from rankscope.conf import RunDir, parse_config

CASES = Path(__file__).parents[2] / "data" / "scaling"


def test_each_scaling_has_its_own_baseline() -> None:
    """Case M01: the baseline shares model, dtype, GPU and batch, or there is none."""
    runs = json.loads((CASES / "M01-runs.json").read_text())
    points = [
        Measured(
            id=run["id"],
            job=(run["model"], run["dtype"], run["gpu"]),
            world_size=run["world_size"],
            rank_batch=run["batch_per_gpu"],
            ddp=run["world_size"] > 1,
            samples_per_s=run["samples_per_s"],
        )
        for run in runs
    ]
    found = {item.id: item for item in efficiencies(points)}
    for name, wanted in json.loads((CASES / "M01-expected.json").read_text())["efficiency"].items():
        for key, value in wanted.items():
            assert getattr(found[name], key) == (None if value is None else pytest.approx(value)), (name, key)


def point(name: str, ranks: int, batch: int, step_ms: float, parts: list[float] | None = None) -> Measured:
    names = ("compute", "exposed_transfer", "exposed_wait", "copy", "data_stall", "host_gap")
    return Measured(
        id=name,
        job="job",
        world_size=ranks,
        rank_batch=batch,
        ddp=ranks > 1,
        samples_per_s=1000 * ranks * batch / step_ms,
        parts_ms=None if parts is None else dict(zip(names, parts, strict=True)),
    )


def test_measured_on_h100s() -> None:
    """Unprofiled steps of one job on 1, 2 and 4 GPUs, batch 32 a GPU, and the same global batch of 32."""
    points = [point("one", 1, 32, 53.8), point("weak2", 2, 32, 55.5), point("weak4", 4, 32, 55.8)]
    points += [point("strong2", 2, 16, 30.4), point("strong4", 4, 8, 21.2)]
    found = {item.id: item for item in efficiencies(points)}
    assert found["weak2"].weak == pytest.approx(0.969, abs=0.001)
    assert found["weak4"].weak == pytest.approx(0.964, abs=0.001)
    assert found["strong2"].strong == pytest.approx(0.885, abs=0.001)
    assert found["strong4"].strong == pytest.approx(0.635, abs=0.002)
    assert found["strong4"].weak is None


def test_waterfall_sums_to_the_measured_step() -> None:
    """Traced steps are twice as long as plain ones here: their shares count, not their lengths."""
    points = [
        point("one", 1, 32, 50.0, [90, 0, 0, 2, 0, 8]),  # scaled by 1/2: 45, 0, 0, 1, 0, 4
        point("small", 1, 16, 30.0, [50, 0, 0, 2, 0, 8]),  # 25, 0, 0, 1, 0, 4
        point("two", 2, 16, 40.0, [52, 8, 6, 2, 4, 8]),  # 26, 4, 3, 1, 2, 4
    ]
    weak, strong = waterfalls(points)
    assert weak.losses_ms == pytest.approx(
        {"compute_inflation": 1, "exposed_transfer": 4, "exposed_wait": 3, "copy": 0, "data_stall": 2, "host_gap": 0}
    )
    assert (weak.ideal_ms, weak.rest_ms) == pytest.approx((30.0, 0))
    assert strong.losses_ms["smaller_batch"] == pytest.approx(30 - 50 / 2)
    for fall in (weak, strong):
        assert fall.ideal_ms + sum(fall.losses_ms.values()) + fall.rest_ms == pytest.approx(fall.measured_ms)


def test_headline_says_where_the_largest_job_loses_time() -> None:
    """Two ranks: 10 ms become 12.5, 80 %; four: 16 ms, 62.5 %. Of the 6 ms, waiting takes 4 and compute 1.5."""
    rows = [
        {"id": "b", "label": "2 x 8", "world_size": 2, "weak": 0.8, "weak_interval": None},
        {"id": "c", "label": "4 x 8", "world_size": 4, "weak": 0.625, "weak_interval": (0.6, 0.65)},
    ]
    fall = {"id": "c", "kind": "weak", "ideal_ms": 10.0, "measured_ms": 16.0, "rest_ms": 0.5}
    fall["losses_ms"] = {"compute_inflation": 1.5, "exposed_wait": 4.0}
    said = headline(rows, [fall])
    assert said == (
        "4 x 8: weak efficiency 62.5% (60.0% to 65.0%). Of 6.00 ms lost in each step, exposed wait takes 4.00 ms, "
        "compute inflation takes 1.50 ms."
    )
    assert "cannot be split" in (headline(rows, []) or "") and headline([], []) is None


def test_no_advice_from_a_difference_within_the_noise() -> None:
    """A step at twice the batch takes 2.1 times as long; where steps vary by half, this may be chance."""
    rng = np.random.default_rng(3)
    for spread, advised in ((0.001, True), (0.5, False)):
        steps = [[mean * np.exp(rng.normal(0, spread, 20)) for _ in range(3)] for mean in (10.0, 21.0)]
        pair = [point("b8", 1, 8, 10.0), point("b16", 1, 16, 21.0)]
        pair = [msgspec.structs.replace(item, steps_ms=made) for item, made in zip(pair, steps, strict=True)]
        assert any("stops growing" in line for line in advice(pair)) == advised


def test_unknown_parts_are_rest() -> None:
    points = [point("one", 1, 8, 10.0, [10, 0, 0, 0, 0, 0]), point("two", 2, 8, 12.0)]
    (fall,) = waterfalls(points)
    assert fall.losses_ms == {} and fall.rest_ms == pytest.approx(2) and fall.explained == pytest.approx(0)


def test_bootstrap_covers_the_truth() -> None:
    """Of 100 samples with a known median, the 95 % interval holds it in at least 85 (less by chance: under 1e-4)."""
    rng = np.random.default_rng(5)
    hits = 0
    for seed in range(100):
        repeats = [rng.normal(10, 1, 40) for _ in range(3)]
        found = interval(lambda median: median, repeats, draws=200, seed=seed)
        assert found is not None
        hits += found[0] <= 10 <= found[1]
    assert hits >= 85
    assert interval(lambda median: median, []) is None


def test_advice_names_the_knee_and_the_limit() -> None:
    points = [point(f"b{batch}", 1, batch, ms) for batch, ms in ((8, 10.0), (16, 12.0), (32, 23.5), (64, 47.0))]
    points += [point("w2", 2, 32, 25.0), point("w4", 4, 32, 40.0)]
    lines = advice(points, target=0.8)
    assert any("stops growing at a batch of 16" in line for line in lines)
    assert any(
        line.startswith("weak scaling, batch 32 per rank: efficiency falls below 80% at 4 ranks") for line in lines
    )


def test_several_jobs_are_told_apart() -> None:
    """In one report, compiled or not: in the advice, and in what a point is called in tables and figures."""
    settings = [{"model": {"name": "gpt"}, "compile": mode} for mode in ("off", "default")]
    both = [
        msgspec.structs.replace(point(f"{job['compile']}-{batch}", 1, batch, ms), job=job)
        for job, times in zip(settings, ((10.0, 19.9), (8.0, 9.0)), strict=True)
        for batch, ms in zip((8, 16), times, strict=True)
    ]
    (line,) = advice(both)
    assert line.startswith("compile=off: 1 rank: throughput stops growing at a batch of 8")
    points = [
        Point(id=one.id, run_dir=None, overrides=[], baseline=False, status="completed", measured=one,
              config=parse_config({"batch_size": one.rank_batch, "world_size": 1}))
        for one in both
    ]  # fmt: skip
    tell_jobs_apart(points)
    assert [one.label for one in points] == [
        "compile=off, 1 x 8", "compile=off, 1 x 16", "compile=default, 1 x 8", "compile=default, 1 x 16",
    ]  # fmt: skip
    tell_jobs_apart(points[:2])
    assert points[0].label == "1 x 8"


def test_mfu_has_dense_peaks_only() -> None:
    """Case M04: the dense peak of the arithmetic in use; an unknown GPU has none."""
    jobs = json.loads((CASES / "M04-jobs.json").read_text())
    table = jobs["peaks_flops_per_s"]
    assert dense_peak_flops("NVIDIA H100 80GB HBM3", "bf16") == pytest.approx(table["H100-SXM"]["bf16_dense"], rel=1e-3)
    assert dense_peak_flops("NVIDIA H100 80GB HBM3", "tf32") == pytest.approx(table["H100-SXM"]["tf32_dense"], rel=1e-3)
    assert dense_peak_flops("NVIDIA A100-SXM4-80GB", "bf16") == table["A100-SXM"]["bf16_dense"]
    assert dense_peak_flops("UNKNOWN-GPU", "bf16") is None and dense_peak_flops(None, "bf16") is None


@pytest.mark.parametrize(
    ("key", "value"), [("failure", "x"), ("overrides", [1, None]), ("overrides", {}), ("status", 3)]
)
def test_a_record_with_values_of_other_types_is_a_point(key: str, value: object, tmp_path: Path) -> None:
    data = Path(__file__).parents[2] / "data" / "runs" / "slow_host_w2"
    run = shutil.copytree(data, tmp_path / "run")
    (run / "run.json").write_text(json.dumps(json.loads((run / "run.json").read_text()) | {key: value}))
    assert run_point(RunDir(run)).id == "run"
