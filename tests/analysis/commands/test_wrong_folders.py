"""A folder of another kind than a command takes: the line says what it is, and which command or folder is meant."""

from pathlib import Path

import pytest

from rankscope.analysis.commands.analyze import main as analyze
from rankscope.analysis.commands.report_compare import report_main as report
from rankscope.analysis.commands.timeline import main as timeline
from rankscope.conf import RunDir
from rankscope.conf.sweep_dir import SweepDir

TRACES = Path(__file__).parents[2] / "data" / "traces"


def test_a_sweep_is_shown_by_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SweepDir(tmp_path).record.write_text("{}")
    for command in (analyze, timeline):
        assert command([str(tmp_path)]) == 2
        assert f"{tmp_path}: a sweep; `rankscope report` shows it" in capsys.readouterr().err


def test_a_folder_of_runs_is_answered_with_the_latest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("20260101-run", "20260102-run"):
        (tmp_path / name).mkdir()
        RunDir(tmp_path / name).record.write_text("{}")
    assert analyze([str(tmp_path)]) == 2
    assert f"a folder of 2 runs; give one of them, such as {tmp_path / '20260102-run'}" in capsys.readouterr().err


def test_a_run_is_shown_by_analyze(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunDir(tmp_path).record.write_text("{}")
    assert report([str(tmp_path)]) == 2
    assert f"{tmp_path}: a run and no sweep; rankscope analyze shows it" in capsys.readouterr().err


def test_steps_that_do_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(TRACES / "big_straggler_gpu_w4"), "--only-steps", "999:1000", "--out", str(tmp_path)]
    assert analyze(words) == 2
    assert "none of the steps that were asked for; the recording has 4 to 7" in capsys.readouterr().err


def test_what_is_no_sweep_says_what_to_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, words in ((tmp_path / "gone", "does not exist"), (tmp_path, "sweep.json: not the record of a sweep")):
        assert report([str(folder)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line and line.endswith("give a folder that rankscope run -m made")
