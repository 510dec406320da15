"""What an export gives to a sink: the steps of the passes, a figure, settings and results."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from rankscope.analysis import load
from rankscope.analysis.export.scalars import Scalar, plain_scalars, traced_scalars
from rankscope.analysis.export.sink import Setting
from rankscope.analysis.export.write import write_point
from rankscope.analysis.measure.step_metrics import STEP_METRICS
from rankscope.analysis.sweep.points import run_point
from rankscope.conf import RunDir

RUN = Path(__file__).parents[2] / "data" / "runs" / "resnet_w2"


class Kept:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.scalars: list[Scalar] = []
        self.images: dict[str, bytes] = {}
        self.config: dict[str, Setting] = {}
        self.results: dict[str, float] = {}

    def scalar(self, name: str, rank: int, step: int, value: float) -> None:
        self.scalars.append(Scalar(name, rank, step, value))

    def image(self, name: str, step: int, png: bytes) -> None:
        self.images[name] = png

    def settings(self, settings: Mapping[str, Setting], results: Mapping[str, float]) -> None:
        self.config.update(settings)
        self.results.update(results)

    def close(self) -> None: ...


def test_a_sink_gets_the_run() -> None:
    sink = Kept()
    count = write_point(run_point(RunDir(RUN)), sink)
    assert count == len(sink.scalars) == len(set(row[:3] for row in sink.scalars))
    assert sink.images["timeline"].startswith(b"\x89PNG")
    assert sink.config["world_size"] == 2 and sink.config["model.name"] == "resnet" and "run_dir" not in sink.config
    assert sink.results["result/step_ms"] > 0


def test_rows_of_the_plain_pass_are_its_steps() -> None:
    steps = pd.read_parquet(RUN / "passes" / "plain" / "ranks" / "1" / "steps.parquet").set_index("step")
    found = {row.step: row.value for row in plain_scalars(RunDir(RUN)) if row[:2] == ("plain_step_ms", 1)}
    assert found == pytest.approx((steps["device_ns"].dropna() / 1e6).to_dict())


def test_rows_of_the_trace_are_the_step_metrics() -> None:
    analysis = load(RUN)
    rows = list(traced_scalars(analysis))
    expected = analysis.steps().query("analysed and rank == 0").set_index("step")["compute_ns"] / 1e6
    assert {row.step: row.value for row in rows if row[:2] == ("traced_compute_ms", 0)} == pytest.approx(
        expected.to_dict(), abs=1e-6
    )
    assert {f"traced_{metric.name}" for metric in STEP_METRICS} <= {row.name for row in rows}
