"""Two passes of one run: a run folder whose torch pass is real and whose nsys pass is made or real."""

import json
import shutil
from pathlib import Path

import pytest

from rankscope.analysis import load, summarise
from rankscope.analysis.show.terminal import show

from ..read.nsys_files import write_job

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """The job `big_baseline` on 4 GPUs under torch.profiler and under Nsight Systems, as one run folder."""
    run = tmp_path / "run"
    for rank in range(4):
        for name, source, target in (
            ("torch", DATA / "traces" / "big_baseline_w4" / f"rank{rank}.json.gz", "trace.json.gz"),
            ("nsys", DATA / "nsys" / "big_baseline_w4" / f"rank{rank}.sqlite", "nsys.sqlite"),
        ):
            folder = run / "passes" / name / "ranks" / str(rank)
            folder.mkdir(parents=True)
            shutil.copy(source, folder / target)
            (folder / "rank.json").write_text(json.dumps({"rank": rank, "world_size": 4}))
    (run / "run.json").write_text(json.dumps({"layout": 1}))
    shutil.copy(DATA / "runs" / "resnet_w2" / "config.yaml", run / "config.yaml")
    return run


def test_torch_is_the_source_and_nsys_the_witness(both: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    summary = summarise(load(both))
    found = summary["agreement"]
    assert summary["source"] == "kineto" and found["ranks"] == [0, 1, 2, 3]
    assert found["steps"] == {"torch": [5, 6, 7], "nsys": [1, 2, 3]}
    by_name = {row["name"]: row for row in found["quantities"]}
    assert abs(by_name["step_ms"]["difference"]) < 0.05 and abs(by_name["compute_ms"]["difference"]) < 0.05
    assert all(row["torch"] > 0 and row["nsys"] > 0 for row in found["quantities"])
    assert found["verdict"]["agree"] is True
    show(summary, Console(width=80))
    out = capsys.readouterr().out
    assert "Two profilers compared" in out and max(map(len, out.splitlines())) <= 80


def test_an_unusable_second_pass_is_named(both: Path) -> None:
    for path in (both / "passes" / "nsys").rglob("nsys.sqlite"):
        path.write_bytes(b"")
    summary = summarise(load(both))
    assert summary["agreement"] is None and summary["stragglers"]["verdict"] == "none"
    assert [item["kind"] for item in summary["warnings"]].count("nsys_pass_unusable") == 1


def test_the_nsys_pass_alone_is_the_source(both: Path) -> None:
    shutil.rmtree(both / "passes" / "torch")
    summary = summarise(load(both))
    assert (summary["source"], summary["agreement"], summary["world_size"]) == ("nsys", None, 4)


def test_sizes_of_the_nsys_pass_come_from_the_torch_pass(both: Path) -> None:
    lent = {row["bytes"] for row in summarise(load(both / "passes" / "torch"))["collectives"]} - {None}
    rows = summarise(load(both / "passes" / "nsys"))["collectives"]
    assert {row["bytes"] for row in rows} == lent and sum(row["count"] for row in rows) == 44
    shutil.rmtree(both / "passes" / "torch")
    assert {row["bytes"] for row in summarise(load(both / "passes" / "nsys"))["collectives"]} == {None}


def test_passes_that_disagree_are_named(both: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    for rank, path in enumerate(write_job(tmp_path / "made", 4)):
        shutil.copy(path, both / "passes" / "nsys" / "ranks" / str(rank) / "nsys.sqlite")
    late = write_job(tmp_path, 4, comm_start=300_000)
    for rank in range(3):  # three ranks wait 0.2 ms of a step of 1 ms for the fourth
        shutil.copy(late[rank], both / "passes" / "nsys" / "ranks" / str(rank) / "nsys.sqlite")
    summary = summarise(load(both))
    assert summary["agreement"]["verdict"]["nsys"] | {"cause": None} == {
        "verdict": "persistent",
        "rank": 3,
        "cause": None,
    }
    assert summary["agreement"]["verdict"]["agree"] is False
    assert any(item["kind"] == "passes_disagree" for item in summary["warnings"])
