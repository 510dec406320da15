"""A run and a sweep written to W&B (offline) and MLflow, and read back with wandb's messages and MLflow's client."""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rankscope.conf.sweep_dir import PointRecord, SweepDir, SweepRecord
from tests.wandb_file import config, history, run_of, summary

pytest.importorskip("wandb", reason="wandb is not installed: pip install 'rankscope[wandb]'")
pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'rankscope[mlflow]'")

from mlflow import MlflowClient

from rankscope.analysis.commands import mlflow, wandb

RUNS = Path(__file__).parents[2] / "data" / "runs"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shutil.copytree(RUNS / "resnet_w2", tmp_path / "resnet")
    return tmp_path / "resnet"


def steps_of(run: Path, rank: int) -> dict[int, float]:
    """Return the plain steps (ms) that the rank recorded."""
    table = pd.read_parquet(run / "passes" / "plain" / "ranks" / str(rank) / "steps.parquet").set_index("step")
    times = (table["device_ns"].dropna() / 1e6).to_dict()
    return {int(str(step)): float(time) for step, time in times.items()}


def runs_at(client: MlflowClient) -> list[Any]:
    experiment = client.get_experiment_by_name("rankscope")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def test_wandb(run: Path) -> None:
    assert wandb.main([str(run), "--project", "speed", "--quiet"]) == 0
    record, file = run_of(run / "analysis")
    assert (record.project, record.run_group, record.display_name) == ("speed", "resnet", "resnet")
    rows = history(file)
    for rank in (0, 1):
        name = f"plain_step_ms/rank_{rank}"
        assert {row["_step"]: row[name] for row in rows if name in row} == pytest.approx(steps_of(run, rank))
    assert rows[-1]["timeline/_type"] == "image-file"
    assert config(file)["world_size"] == 2 and summary(file)["result/step_ms"] > 0
    assert not any(path.is_symlink() for path in run.rglob("*"))  # no command writes into a folder with links


def test_what_wandb_refuses_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert wandb.main([str(run), "--project", "a/b", "--quiet"]) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("rankscope")]
    assert len(told) == 1 and "Invalid project name" in told[0]


def test_mlflow(run: Path, tmp_path: Path) -> None:
    uri = (tmp_path / "mlruns").as_uri()
    assert mlflow.main([str(run), "--uri", uri, "--quiet"]) == 0
    client = MlflowClient(tracking_uri=uri)
    (found,) = runs_at(client)
    history = client.get_metric_history(found.info.run_id, "plain_step_ms/rank_1")
    assert {point.step: point.value for point in history} == pytest.approx(steps_of(run, 1))
    assert found.data.params["world_size"] == "2" and found.data.metrics["result/step_ms"] > 0
    assert [item.path for item in client.list_artifacts(found.info.run_id, "images")] == ["images/timeline.png"]
    assert found.info.status == "FINISHED"


def test_each_point_of_a_sweep_is_a_run(run: Path, tmp_path: Path) -> None:
    points = []
    for number in range(2):
        shutil.copytree(run, tmp_path / "sweep" / "points" / f"00{number}")
        points.append(PointRecord(id=f"00{number}", overrides=[], status="completed", folder=f"00{number}"))
    SweepDir(tmp_path / "sweep").write(SweepRecord(overrides=[], status="completed", points=points))
    uri = (tmp_path / "mlruns").as_uri()
    assert mlflow.main([str(tmp_path / "sweep"), "--uri", uri, "--quiet"]) == 0
    client = MlflowClient(tracking_uri=uri)
    assert sorted(run.info.run_name for run in runs_at(client)) == ["000", "001", "sweep"]


def test_what_does_not_work_is_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mlflow.main([str(run), "--uri", "nonsense://", "--quiet"]) == 2
    assert "Give the address of a server" in (error := capsys.readouterr().err) and error.count("\n") == 1
    assert mlflow.main([str(tmp_path), "--uri", (tmp_path / "mlruns").as_uri(), "--quiet"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
