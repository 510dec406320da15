"""What must survive: ranks that fail in every way, with the first cause named and the records kept."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rankscope.conf import RunDir
from rankscope.launch.main import main

from ..conftest import TINY, of_run, read_json, start_launcher

pytestmark = pytest.mark.distributed


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault on rank 1, and what the launcher must say of it; `{}` stands for the limit in seconds."""

    fault: str
    kind: str
    said: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    status: int = 3
    records: bool = False
    in_slurm: bool = False


CASES = [
    Case(fault="raise", kind="raise", said=("rank 1", "InjectedFault", "planted.py", "stderr.log"), records=True),
    Case(fault="exit", kind="exit", said=("rank 1", "exit status 7"), records=True),
    Case(fault="kill", kind="signal", said=("rank 1", "SIGKILL"), overrides=("passes=[plain]",), status=2),
    Case(fault="oom", kind="oom", said=("rank 1", "out of memory", "allocate"), records=True),
    Case(fault="no_trace", kind="missing_file", said=("rank 1", "trace.json.gz", "does not exist"), records=True),
    Case(
        fault="hang",
        kind="stall",
        said=(
            "rank 1",
            "no rank made progress",
            "stall_timeout_s={}",
            "_hang",
            "stack.txt",
            "did not come to all_reduce",
        ),
        overrides=("passes=[plain]", "launch.stall_timeout_s={}"),
        status=2,
    ),
    Case(
        fault="hang",
        kind="timeout",
        said=("rank 1", "did not end in time", "timeout_s={}", "_hang"),
        overrides=("passes=[plain]", "launch.timeout_s={}"),
        status=2,
    ),
    Case(
        fault="hang",
        kind="time_limit",
        said=("rank 1", "SLURM ends this job within 5 s", "launch.reserve_s", "_hang"),
        overrides=("passes=[plain]", "launch.reserve_s=5"),
        status=2,
        in_slurm=True,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.fault}-{case.kind}")
@pytest.mark.usefixtures("stub_analysis")
def test_first_cause_is_named_and_records_are_kept(
    case: Case, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = ("passes=[torch]", f"scenario.fault={case.fault}", "scenario.rank=1", "scenario.step=3")
    for limit in (14, 60, 240):  # s: other load can make the start of ranks take longer than the first one
        if case.in_slurm:
            monkeypatch.setenv("SLURM_JOB_ID", "1")
            monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + limit + 5))
        run_dir = tmp_path / f"run{limit}"
        overrides = [text.format(limit) for text in case.overrides]
        status = main([*TINY, *fault, f"run_dir={run_dir}", *overrides])
        out, err = capfd.readouterr()
        if "in setup" not in err:
            break
    record = read_json(run_dir / "run.json")
    failure = record["failure"]
    assert (record["status"], failure["kind"], failure["rank"]) == ("failed", case.kind, 1)
    for part in case.said:
        assert part.format(limit) in err
    assert status == case.status
    assert ("--allow-partial" in out) == (status == 3)
    assert Path(failure["log"]).exists()
    if case.records:
        rows = [pq.read_metadata(path).num_rows for path in sorted(run_dir.glob("passes/torch/ranks/*/steps.parquet"))]
        assert len(rows) == 2
        assert min(rows) >= 3
    assert of_run(run_dir) == []
    assert not (run_dir / ".reserve").exists()


# What the C library says of a broken heap, where torch.profiler stops on rank 1.
BREAKS_ITS_HEAP = """
import ctypes, os
if os.environ.get("RANK") == "1":
    import torch.autograd.profiler as profiler
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    def stop(block=libc.malloc(64)):
        libc.free(block)
        libc.free(block)
    profiler._disable_profiler = stop
"""


@pytest.mark.usefixtures("stub_analysis")
def test_a_rank_that_dies_where_the_profiler_stops_leaves_its_steps(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BREAKS_ITS_HEAP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run_dir = RunDir(tmp_path / "run")
    assert main([*TINY, "passes=[torch]", f"run_dir={run_dir.path}"]) == 3
    err = capfd.readouterr().err
    assert "pass torch, rank 1: was ended by SIGABRT in phase export: " in err and "double free" in err
    assert "_transit_action" in err
    other, dead = run_dir.for_pass("torch").ranks()
    assert (read_json(other.info)["traces"], other.trace.exists()) == (["trace.json.gz"], True)
    assert (read_json(dead.info)["status"], dead.trace.exists()) == ("unfinished", False)
    assert [pq.read_metadata(rank.steps).num_rows for rank in (other, dead)] == [5, 5]
    assert of_run(run_dir.path) == []


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.usefixtures("stub_analysis")
def test_full_disk_is_named(tiny_disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir = tiny_disk / "run"
    assert main([*TINY, f"run_dir={run_dir}", "launch.min_free_mb=0", "passes=[torch]", "profile=full"]) in (2, 3)
    assert "no space left on device" in capfd.readouterr().err.lower()
    record = read_json(run_dir / "run.json")
    assert (record["status"], record["failure"]["kind"]) == ("failed", "disk_full")


@pytest.mark.usefixtures("stub_analysis")
def test_an_existing_folder_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    assert main([*TINY, f"run_dir={tmp_path / 'mine'}"]) == 2
    assert "exists already" in capfd.readouterr().err
    assert list((tmp_path / "mine").iterdir()) == []


def test_an_unknown_key_is_refused_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["batchsize=3", f"runs_dir={tmp_path / 'runs'}"]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "batchsize" in err
    assert not (tmp_path / "runs").exists()


def test_two_launches_in_one_second_while_torchruns_port_is_busy(tmp_path: Path) -> None:
    with socket.socket() as busy:
        try:
            busy.bind(("localhost", 29500))
            busy.listen()
        except OSError:
            pass  # somebody else keeps it busy
        launched = [start_launcher(f"runs_dir={tmp_path}", "passes=[plain]") for _ in range(2)]
        ends = [process.communicate(timeout=180) for process in launched]
    assert [process.returncode for process in launched] == [0, 0], ends
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 2
    for folder in folders:
        assert read_json(folder / "run.json")["status"] == "completed"
        assert len(list(folder.glob("passes/plain/ranks/*/steps.parquet"))) == 2
    assert sorted(out.split()[-1] for out, _ in ends) == [str(folder) for folder in folders]
