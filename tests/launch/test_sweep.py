"""Sweeps: which points they have, and one from start to report with a point that fails, interrupted and resumed."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.conf import ConfigError
from rankscope.conf.sweep_dir import SweepDir
from rankscope.launch.configure.compose import compose
from rankscope.launch.configure.sweep_points import baselines, expand, plan
from rankscope.launch.main import main

from .conftest import of_run, wait_for

FAST = (
    "device=cpu",
    "model=mlp",
    "steps=3",
    "seconds=1",
    "warmup_steps=1",
    "profile.wait=0",
    "profile.warmup=1",
    "profile.active=2",
)


def keys(point: list[str]) -> dict[str, str]:
    return dict(item.split("=", 1) for item in point)


def test_every_combination_once() -> None:
    points = [keys(point) for point in expand(["world_size=1,2", "batch_size=8,16", "passes=[plain,torch]"])]
    assert [(point["world_size"], point["batch_size"]) for point in points] == [
        ("1", "8"), ("1", "16"), ("2", "8"), ("2", "16"),
    ]  # fmt: skip
    assert all(point["passes"] == "[plain,torch]" and point["repeats"] == "3" for point in points)


def test_weak_scaling_gets_both_one_rank_baselines_once() -> None:
    points = plan(["world_size=2,4", "batch_size=8"])
    added = [compose(point.overrides) for point in points if point.baseline]
    assert [(c.world_size, c.rank_batch_size, c.ddp.enabled) for c in added] == [(1, 8, False), (1, 8, True)]
    assert len({compose(point.overrides).threads for point in points}) == 1


def test_strong_scaling_gets_the_whole_batch_and_the_small_ones() -> None:
    points = plan(["world_size=2,4", "batch_size=null", "global_batch_size=32"])
    added = [compose(point.overrides) for point in points if point.baseline]
    found = {(c.rank_batch_size, c.ddp.enabled) for c in added}
    assert found == {(32, False), (16, False), (16, True), (8, False), (8, True)} and len(added) == 5


def test_a_baseline_has_no_planted_fault() -> None:
    overrides = ["world_size=2", "scenario=slow_compute", "scenario.ms=5"]
    for wanted in baselines(compose(overrides), overrides):
        assert compose(wanted).scenario.fault == "none"


def test_a_baseline_of_several_nodes_is_on_one() -> None:
    points = plan(["world_size=4", "launch.nnodes=2"], cores=8)
    assert [compose(point.overrides).launch.nnodes for point in points] == [1, 1, 2]
    assert {compose(point.overrides).threads for point in points} == {4}  # two ranks a node share 8 cores


def test_named_sweeps_compose_and_own_keys_win() -> None:
    for name in ("weak", "strong", "buckets", "loader", "latency"):
        assert len(plan([f"+sweep={name}"])) > 3
    batches = {compose(point.overrides).rank_batch_size for point in plan(["+sweep=weak", "batch_size=4"])}
    assert batches == {4}
    with pytest.raises(ConfigError, match="name one sweep of buckets, latency, loader, strong, weak"):
        plan(["+sweep=wek"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-m", "world_size=1,64", "device=cuda"], "device=cuda"),
        (["-m", "batch_size=4,no"], "batch_size='no'"),
        (["-m", "model=gpt,nope"], "model=nope"),
        (["--resume", "nowhere"], "nowhere: does not exist; give a folder that rankscope run -m made"),
        (["-m", "world_size=2", "launch.nnodes=1,2"], "hydra/launcher=slurm"),
        (["-m", "world_size=1,2", "hydra/launcher=slurm"], "hydra.launcher.cpus_per_task"),
    ],
)
def test_refused_before_anything_runs(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert says in said and len(said.splitlines()) == 1 and not list(tmp_path.iterdir())


@pytest.mark.distributed
def test_a_sweep_interrupted_and_resumed(tmp_path: Path) -> None:
    """Two healthy points and one that crashes; Ctrl-C in the first, then --resume; the report shows all of it."""
    faults = ("scenario.fault=none,raise", "scenario.rank=1", "scenario.step=2")
    command = [
        sys.executable,
        "-m",
        "rankscope.launch",
        "-m",
        "world_size=2",
        "batch_size=2",
        "repeats=1",
        *faults,
        *FAST,
    ]
    first = subprocess.Popen([*command, f"runs_dir={tmp_path}"], start_new_session=True, stderr=subprocess.DEVNULL)
    wait_for(lambda: any(tmp_path.glob("*/points/*/passes/*/ranks/*/progress.json")), "a rank of the first point")
    first.send_signal(signal.SIGINT)
    assert first.wait(timeout=180) == 130
    (folder,) = tmp_path.iterdir()
    sweep = SweepDir(folder)
    assert sweep.read().status == "interrupted" and of_run(folder) == []

    again = subprocess.run(
        [sys.executable, "-m", "rankscope.launch", "--resume", folder], capture_output=True, text=True, timeout=180
    )
    assert again.returncode == 3, again.stderr
    record = sweep.read()
    assert [(point.status, point.baseline) for point in record.points] == [
        ("completed", True), ("completed", True), ("completed", False), ("failed", False),
    ]  # fmt: skip
    assert record.points[0].folder == "000-2"  # the interrupted try is kept
    assert record.points[3].failure is not None and record.points[3].failure["kind"] == "raise"
    report = (folder / "analysis" / "report.md").read_text()
    assert "failed: raise:" in report and "(baseline)" in report
    assert "weak" in again.stdout and "failed" in again.stdout

    pages = re.findall(r'href="([^"]+)"', (folder / "analysis" / "report.html").read_text())
    assert len(pages) == 3 and all((folder / "analysis" / page).is_file() for page in pages), "each point's own page"

    report_command = [sys.executable, "-m", "rankscope.conf.cli", "report"]
    done = subprocess.run([*report_command, folder], capture_output=True, timeout=180)
    assert done.returncode == 3  # a point failed: not 0 unless allowed
    both = subprocess.run([*report_command, folder, folder], capture_output=True, text=True, timeout=180)
    assert both.returncode == 2 and "--out" in both.stderr and len(both.stderr.splitlines()) == 1
    together = [*report_command, str(folder), str(folder), "--out", str(tmp_path / "both"), "--allow-partial"]
    assert subprocess.run(together, capture_output=True, timeout=180).returncode == 0
    points = json.loads((tmp_path / "both" / "summary.json").read_text())["points"]
    assert [point["id"] for point in points] == [f"{sweep}-{number:03d}" for sweep in (1, 2) for number in range(4)]
