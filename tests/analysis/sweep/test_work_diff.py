"""What changed in the work between two recordings: new, gone, slower, more often, and nothing if nothing did."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rankscope.analysis import load
from rankscope.analysis.commands.report_compare import compare_main
from rankscope.analysis.sweep.work_diff import WorkChange, work_diff

from ..replay.job_model import MS, US, Job, simulate

DATA = Path(__file__).parents[2] / "data" / "traces"


def compared(a: Job, b: Job, folder: Path) -> list[WorkChange]:
    for name, job in (("a", a), ("b", b)):
        (folder / name).mkdir()
        simulate(job, folder / name)
    return work_diff(load(folder / "a"), load(folder / "b"))


def test_the_same_work_differs_in_nothing(tmp_path: Path) -> None:
    assert compared(Job(world=2), Job(world=2, host=25 * US), tmp_path) == []
    same = load(DATA / "big_baseline_w4")
    assert work_diff(same, same) == []


def test_each_kind_of_change_has_its_word(tmp_path: Path) -> None:
    a = Job(world=2)
    b = replace(a, kernels=9, compute=(450 * US, 450 * US), transfer=4 * MS, buckets=4)
    found = {row.name: row for row in compared(a, b, tmp_path)}
    slower = found["forward_3"]
    assert (slower.how, slower.is_noise) == ("slower", False)
    assert [slower.a_ms, slower.b_ms] == pytest.approx([0.3, 0.45])
    assert slower.low_ms <= 0.15 <= slower.high_ms
    assert found["forward_8"].how == "new" and found["forward_8"].a_calls == 0
    reduced = found["allreduce, 4 kB"]
    assert (reduced.how, reduced.a_calls, reduced.b_calls) == ("more often", 3, 4)
    assert [reduced.a_ms, reduced.b_ms] == pytest.approx([6, 16])
    (tmp_path / "back").mkdir()
    back = compared(b, a, tmp_path / "back")
    assert {row.name for row in back if row.how == "gone"} >= {"forward_8", "backward_3_0"}


def test_two_folders_of_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(DATA / name) for name in ("big_baseline_w4", "big_straggler_gpu_w4")]
    assert compare_main([*paths, "--json", str(tmp_path / "found.json")]) == 0
    work = json.loads((tmp_path / "found.json").read_text())["work"]
    planted = max((row for row in work if row["kind"] == "kernel"), key=lambda row: row["b_ms"] - row["a_ms"])
    assert (planted["how"], planted["is_noise"]) == ("slower", False)
    assert "Work of the traced steps" in capsys.readouterr().out
    assert compare_main([paths[0], str(tmp_path), "--quiet"]) == 2
