"""The nsys pass: stand-ins for an nsys that misbehaves, and the real one where it is installed."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rankscope.conf import ConfigError, nsys_tool, parse_config
from rankscope.conf.run_dir import RankDir, RunDir
from rankscope.launch.main import main
from rankscope.launch.system.nsys_command import profile_command

from ..conftest import ANALYSIS, TINY, of_run, read_json, start_launcher, wait_for

FAKES = Path(__file__).parents[2] / "data" / "nsys" / "fake"
NSYS = nsys_tool.find()
pytestmark = pytest.mark.distributed
needs_nsys = pytest.mark.skipif(NSYS is None, reason="nsys is not installed; .ci/install-nsys shows how to get it")


def run(tmp_path: Path, *overrides: str) -> tuple[int, dict[str, object], Path]:
    run_dir = tmp_path / "run"
    status = main([*TINY, "passes=[plain,nsys]", f"run_dir={run_dir}", *overrides])
    return status, read_json(run_dir / "run.json"), run_dir


# --- stand-ins -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fake", "kind", "said", "ran"),
    [
        ("no-report", "nsys_report_missing", "wrote no usable report", True),
        ("fails", "nsys_failed", "fake nsys: cannot attach", False),  # the only one after a pass that has numbers
        ("agent-lost-once", "nsys_report_missing", "wrote no usable report", True),
        ("agent-lost", "nsys_failed", "before it started the rank: Connection to Agent lost", False),
        ("same-name", "nsys_export_failed", "fake nsys: not a report", True),
        ("killed", "nsys_report_unfinished", "no importer of its release", True),
    ],
)
@pytest.mark.usefixtures("stub_analysis")
def test_an_nsys_that_misbehaves(
    fake: str, kind: str, said: str, ran: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    passes = {"plain": "completed", "nsys": "failed"} if fake == "fails" else {"nsys": "failed"}
    status, record, run_dir = run(tmp_path, f"nsys.program={FAKES / fake / 'nsys'}", f"passes=[{','.join(passes)}]")
    failure = record["failure"]
    assert isinstance(failure, dict)
    assert status == (3 if "plain" in passes else 2)
    assert (record["status"], failure["kind"], failure["pass"]) == ("failed", kind, "nsys")
    assert record["passes"] == passes
    err = capfd.readouterr().err
    assert said in err and "Traceback" not in err
    pass_dir = run_dir / "passes" / "nsys" / "ranks"
    for rank in "01":  # what the program itself measured is kept
        assert (pass_dir / rank / "steps.parquet").exists() == ran
    if fake == "same-name":  # each rank has a file of its own all the same
        assert len({(pass_dir / rank / "nsys.nsys-rep").read_text() for rank in "01"}) == 2
    assert of_run(run_dir) == []


def test_nsys_may_write_after_its_rank_was_ended(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    slow = (f"nsys.program={FAKES / 'slow' / 'nsys'}", "launch.grace_s=3")
    launcher = start_launcher("passes=[nsys]", "profile.active=1000000", f"run_dir={run_dir}", *slow, analysis=ANALYSIS)
    interrupt_in_the_window(launcher, run_dir, signal.SIGTERM)
    reports = [rank.nsys_report for rank in RunDir(run_dir).for_pass("nsys").ranks()]
    assert [report.read_text() for report in reports] == ["complete", "complete"]
    assert of_run(run_dir) == []


def interrupt_in_the_window(launcher: "subprocess.Popen[str]", run_dir: Path, signum: signal.Signals) -> None:
    progress = RunDir(run_dir).for_pass("nsys").rank(0).progress
    wait_for(lambda: progress.exists() and read_json(progress)["phase"] == "measure", "steps")
    launcher.send_signal(signum)
    _, err = launcher.communicate(timeout=180)
    assert launcher.returncode == 128 + signum
    assert "Traceback" not in err
    assert read_json(run_dir / "run.json")["status"] == "interrupted"


def test_without_nsys_nothing_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nsys_tool, "find", lambda: None)
    assert main([*TINY, "passes=[nsys]", f"run_dir={tmp_path / 'run'}"]) == 2
    assert "nsys is neither on PATH" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("nsys", "said"),
    [
        ({"ranks": [2]}, "ranks from 0 to 1"),
        ({"ranks": "some"}, "nsys.ranks"),
        ({"traces": ["cuda"]}, "must include nvtx"),
    ],
)
def test_options_are_checked(nsys: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_config({"world_size": 2, "nsys": nsys})


@pytest.mark.parametrize("cuda", [True, False])
def test_command(cuda: bool, tmp_path: Path) -> None:
    config = parse_config({"nsys": {"traces": ["cuda", "nvtx", "osrt"], "extra_args": ["--gpu-metrics-device=all"]}})
    command = profile_command(Path("nsys"), config, RankDir(tmp_path), "s", cuda=cuda, command=["python", "x"])
    assert command[-3:] == ["--gpu-metrics-device=all", "python", "x"]
    assert ("--trace=cuda,nvtx,osrt" if cuda else "--trace=nvtx,osrt") in command
    assert ("--capture-range=cudaProfilerApi" if cuda else "--capture-range=nvtx") in command
    assert "--capture-range-end=stop" in command and "--osrt-threshold=10000" in command


# --- the real one --------------------------------------------------------------------------------------------


@needs_nsys
def test_two_ranks(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rankscope.launch", *TINY, "passes=[plain,nsys]", f"run_dir={tmp_path / 'run'}"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    summary = read_json(tmp_path / "run" / "analysis" / "summary.json")
    assert (summary["source"], summary["steps"], summary["ranks"]) == ("nsys", [2, 3], [0, 1])
    assert summary["profiler_overhead"]["nsys"] > 0
    for rank in "01":
        folder = tmp_path / "run" / "passes" / "nsys" / "ranks" / rank
        with sqlite3.connect(folder / "nsys.sqlite") as database:
            names = {row[0] for row in database.execute("SELECT value FROM StringIds")}
        assert {"step_2", "step_3", "forward"} <= names and "step_1" not in names
        rows = pq.read_table(folder / "steps.parquet").to_pylist()
        assert [row["phase"] for row in rows] == ["wait", "warmup", "active", "active"]
        assert (folder / "steps.parquet").stat().st_mode & 0o022 == os.stat(tmp_path).st_mode & 0o022


@needs_nsys
@pytest.mark.usefixtures("stub_analysis")
def test_one_rank_of_two_is_recorded(tmp_path: Path) -> None:
    status, record, run_dir = run(tmp_path, "passes=[nsys]", "nsys.ranks=[1]")
    assert (status, record["status"]) == (0, "completed")
    ranks = run_dir / "passes" / "nsys" / "ranks"
    assert [(ranks / rank / "nsys.sqlite").exists() for rank in "01"] == [False, True]


@needs_nsys
@pytest.mark.parametrize(("fault", "kind"), [("raise", "raise"), ("kill", "signal")])
@pytest.mark.usefixtures("stub_analysis")
def test_a_crash_of_one_rank_keeps_both_reports(
    fault: str, kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    overrides = ("passes=[nsys]", f"scenario.fault={fault}", "scenario.rank=1", "scenario.step=3")
    status, record, run_dir = run(tmp_path, *overrides)
    failure = record["failure"]
    assert isinstance(failure, dict)
    assert (status, failure["kind"], failure["rank"]) == (3, kind, 1)
    assert "Traceback" not in capfd.readouterr().err or fault == "raise"
    ranks = run_dir / "passes" / "nsys" / "ranks"
    assert [(ranks / rank / "nsys.nsys-rep").exists() for rank in "01"] == [True, True]
    assert of_run(run_dir) == []


@needs_nsys
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_in_the_window(signum: signal.Signals, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    overrides = ("passes=[nsys]", "profile.active=1000000", f"run_dir={run_dir}")
    launcher = start_launcher(*overrides, analysis=ANALYSIS)
    interrupt_in_the_window(launcher, run_dir, signum)
    pass_dir = RunDir(run_dir).for_pass("nsys")
    lost = [rank.rank for rank in pass_dir.ranks() if not rank.nsys_report.exists()]
    assert lost == [], pass_dir.agent_log.read_text()
    assert of_run(run_dir) == []


@needs_nsys
def test_a_time_limit_keeps_the_reports(tmp_path: Path) -> None:
    assert NSYS is not None
    fault = ("scenario.fault=hang", "scenario.rank=1", "scenario.step=3", "launch.stall_timeout_s=15")
    status, record, run_dir = run(tmp_path, "passes=[nsys]", *fault)
    failure = record["failure"]
    assert isinstance(failure, dict)
    assert (failure["kind"], failure["rank"]) == ("stall", 1)
    ranks = run_dir / "passes" / "nsys" / "ranks"
    assert all((ranks / rank / "nsys.nsys-rep").exists() for rank in "01")
    assert status in (2, 3)


@needs_nsys
@pytest.mark.usefixtures("stub_analysis")
def test_a_link_missing_beside_nsys_is_imported_or_named(tmp_path: Path) -> None:
    """A target folder alone, as in Debian's packages: nsys leaves a raw recording and says nothing."""
    assert NSYS is not None
    if nsys_tool.importer(NSYS) is None:
        pytest.skip("this nsys has no importer")
    alone = tmp_path / "target-linux-x64"
    shutil.copytree(NSYS.resolve().parent, alone, symlinks=True)
    status, record, run_dir = run(tmp_path, "passes=[nsys]", f"nsys.program={alone / 'nsys'}")
    if "Agent lost" in str(record["failure"]):  # nsys lost its own agent: seen once, on a busy machine
        (tmp_path / "again").mkdir()
        status, record, run_dir = run(tmp_path / "again", "passes=[nsys]", f"nsys.program={alone / 'nsys'}")
    failure = record["failure"]
    assert status == 2 and isinstance(failure, dict)
    assert failure["kind"] == "nsys_report_unfinished" and "QdstrmImporter" in failure["message"]
    assert (run_dir / "passes" / "nsys" / "ranks" / "0" / "nsys.qdstrm").exists()


SCRIPT = """
import nvtx
for step in range(3):
    with nvtx.annotate("train_step %d" % (step + 5)), nvtx.annotate("forward"):
        sum(range(100_000))
"""


@needs_nsys
def test_reports_of_any_job_are_exported_and_analysed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--trace=nvtx", "--sample=none", "--cpuctxsw=none", "-o", str(tmp_path / "rank0")]
    subprocess.run([str(NSYS), "profile", *options, sys.executable, str(tmp_path / "train.py")], check=True)
    command = [sys.executable, "-m", "rankscope.conf.cli", "analyze", str(tmp_path), "--json", "-", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["source"], summary["steps"]) == ("nsys", [5, 6, 7])
    assert summary["per_rank"][0]["compute_ms"] > 0
    assert (tmp_path / "rank0.sqlite").exists()


@needs_nsys
def test_a_raw_recording_becomes_a_report(tmp_path: Path) -> None:
    assert NSYS is not None
    importer = nsys_tool.importer(NSYS)
    if importer is None:
        pytest.skip("this nsys has no importer")
    shutil.copytree(NSYS.resolve().parent, tmp_path / "target-linux-x64", symlinks=True)
    options = ["--trace=nvtx", "--sample=none", "--cpuctxsw=none", "-o", str(tmp_path / "raw")]
    alone = [str(tmp_path / "target-linux-x64" / "nsys"), "profile", *options, sys.executable, "-c", SCRIPT]
    subprocess.run(alone, check=True)
    assert nsys_tool.import_raw(importer, tmp_path / "raw.qdstrm", tmp_path / "whole.nsys-rep") is None
    assert nsys_tool.export(NSYS, tmp_path / "whole.nsys-rep", tmp_path / "whole.sqlite") is None
    broken = tmp_path / "broken.qdstrm"
    broken.write_bytes(b"partial")
    assert nsys_tool.import_raw(importer, broken, tmp_path / "broken.nsys-rep") is not None


@needs_nsys
def test_a_killed_launcher_leaves_nothing(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    launcher = start_launcher("passes=[nsys]", "profile.active=1000000", f"run_dir={run_dir}")
    progress = run_dir / "passes" / "nsys" / "ranks" / "0" / "progress.json"
    wait_for(lambda: progress.exists() and read_json(progress)["phase"] == "measure", "steps")
    launcher.kill()
    launcher.communicate()
    wait_for(lambda: of_run(run_dir) == [], "the ranks and nsys to end")
    assert all((progress.parents[1] / rank / "nsys.nsys-rep").exists() for rank in "01")
