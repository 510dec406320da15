"""The log folder read back by TensorBoard itself: scalars, figures, hparams of a run and of a sweep."""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rankscope.analysis import load
from rankscope.analysis.commands.report_compare import compare_main
from rankscope.conf.sweep_dir import PointRecord, SweepDir, SweepRecord

pytest.importorskip("tensorboardX", reason="tensorboardX is not installed: pip install 'rankscope[tensorboard]'")

from rankscope.analysis.commands.tensorboard import main

RUNS = Path(__file__).parents[2] / "data" / "runs"


def read(folder: Path) -> Any:
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = module.EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    found.Reload()
    return found


def test_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "resnet"
    shutil.copytree(RUNS / "resnet_w2", run)
    for _ in range(2):  # again: it replaces what it wrote
        assert main([str(run)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"tensorboard --logdir {run / 'analysis' / 'tensorboard'}"
    folder = run / "analysis" / "tensorboard" / "resnet"
    assert len(list(folder.iterdir())) == 1
    log = read(folder)
    plain = pd.read_parquet(run / "passes" / "plain" / "ranks" / "1" / "steps.parquet")
    expected = plain.set_index("step")["device_ns"].dropna() / 1e6
    found = {event.step: event.value for event in log.Scalars("plain_step_ms/rank_1")}
    assert found == pytest.approx(expected.to_dict(), rel=1e-6)
    table = load(run).steps().query("analysed and rank == 0").set_index("step")
    traced = {event.step: event.value for event in log.Scalars("traced_host_gap_ms/rank_0")}
    assert traced == pytest.approx((table["host_gap_ns"] / 1e6).to_dict(), rel=1e-6)
    used = {event.step: event.value for event in log.Scalars("traced_sm_efficiency/rank_0")}
    assert used == pytest.approx(table["sm_efficiency"].to_dict(), abs=1e-6)  # rounded as in the summary
    assert 0 < min(used.values()) < 0.05, "it waits for its host"
    assert log.Tags()["images"] == ["timeline"]
    assert "_hparams_/experiment" in log.PluginTagToContent("hparams")
    assert log.Scalars("result/step_ms")[0].value > 0


def test_sweep_and_what_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = []
    for number, name in enumerate(("resnet_w2", "images_w2")):
        shutil.copytree(RUNS / name, tmp_path / "sweep" / "points" / f"00{number}")
        points.append(PointRecord(id=f"00{number}", overrides=[], status="completed", folder=f"00{number}"))
    points.append(PointRecord(id="002", overrides=[], status="failed"))
    SweepDir(tmp_path / "sweep").write(SweepRecord(overrides=[], status="failed", points=points))
    assert main([str(tmp_path / "sweep"), "--out", str(tmp_path / "log"), "--quiet"]) == 0
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == ["000", "001", "sweep"]
    assert read(tmp_path / "log" / "sweep").Tags()["images"] == ["throughput"]
    assert capsys.readouterr().out == ""
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_compare_says_how_to_see_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rankscope.analysis.commands.analyze import main as analyze

    runs = [tmp_path / "a", tmp_path / "b"]
    for run in runs:
        shutil.copytree(RUNS / "resnet_w2", run)
        assert analyze([str(run), "--quiet"]) == 0
    assert compare_main([str(run) for run in runs]) == 0
    assert f"by eye: rankscope timeline {runs[0]} {runs[1]}" in capsys.readouterr().out
    assert compare_main([*[str(run) for run in runs], "--quiet"]) == 0
    assert capsys.readouterr().out == ""
