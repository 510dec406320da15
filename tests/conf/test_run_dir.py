"""The run folder: claimed by one only, and its record."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from rankscope.conf import RunDir, RunDirError
from rankscope.conf.sweep_dir import SweepDir

NOON = datetime(2026, 1, 2, 12, 0, 0)


def test_launches_in_one_second_get_a_folder_each(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        claimed = list(pool.map(lambda _: RunDir.claim(tmp_path, "run", NOON).path, range(32)))
    assert len(set(claimed)) == 32
    assert tmp_path / "20260102-120000-run" in claimed


def test_one_process_of_many_gets_the_exact_folder(tmp_path: Path) -> None:
    code = (
        "import sys; from datetime import datetime; from pathlib import Path; from rankscope.conf import RunDir\n"
        "sys.stdin.readline()\n"
        "RunDir.claim(Path('x'), 'run', datetime.now(), Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a" / "mine")]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    errors = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started].count(0) == 1
    assert sum("exists already" in error for error in errors) == 3


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(RunDirError, match="mine: exists already"):
        RunDir.claim(tmp_path, "run", NOON, tmp_path / "mine")
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_folder_that_was_handed_over_is_claimed_once_more(tmp_path: Path) -> None:
    run_dir = RunDir.claim(tmp_path, "run", NOON)
    run_dir.hand_over()
    assert RunDir.claim(tmp_path, "run", NOON, run_dir.path) == run_dir
    with pytest.raises(RunDirError, match="exists already"):
        RunDir.claim(tmp_path, "run", NOON, run_dir.path)


def test_the_record_keeps_what_was_written_before(tmp_path: Path) -> None:
    run_dir = RunDir.claim(tmp_path, "run", NOON)
    run_dir.write_record(status="running", overrides=["a=1"])
    run_dir.finish("failed", failure={"rank": 1})
    record = run_dir.read_record()
    assert (record["status"], record["overrides"], record["failure"]) == ("failed", ["a=1"], {"rank": 1})
    assert datetime.fromisoformat(record["end"]).tzinfo is not None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"status": "running"}', json.dumps({"layout": 99})])
def test_a_record_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunDirError, match=r"run\.json"):
        RunDir(tmp_path).read_record()


def test_ranks_come_in_numerical_order(tmp_path: Path) -> None:
    for rank in (10, 9, 0):
        RunDir(tmp_path).for_pass("plain").rank(rank).path.mkdir(parents=True)
    assert [rank.rank for rank in RunDir(tmp_path).for_pass("plain").ranks()] == [0, 9, 10]


@pytest.mark.parametrize("name", ["../../elsewhere", "/tmp/elsewhere", "..", "a/b"])
def test_a_point_s_folder_cannot_leave_its_sweep(name: str, tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="not a folder's name"):
        SweepDir(tmp_path).point(name)
    assert SweepDir(tmp_path).point("003-2").path == tmp_path / "points" / "003-2"


@pytest.mark.parametrize("name", ["../../elsewhere", "..", "", "a/b"])
def test_the_id_of_a_point_is_a_plain_name(name: str, tmp_path: Path) -> None:
    """`rankscope tensorboard` writes a folder of this name."""
    (tmp_path / "sweep.json").write_text(json.dumps({"overrides": [], "points": [{"id": name, "overrides": []}]}))
    with pytest.raises(RunDirError, match="not a plain name"):
        SweepDir(tmp_path).read()


@pytest.mark.parametrize(("count", "says"), [(2, "the same folder"), (5000, "more than")])
def test_points_that_a_sweep_only_claims_are_refused(count: int, says: str, tmp_path: Path) -> None:
    points = [{"id": str(number), "overrides": [], "folder": "000"} for number in range(count)]
    (tmp_path / "sweep.json").write_text(json.dumps({"overrides": [], "points": points}))
    with pytest.raises(RunDirError, match=says):
        SweepDir(tmp_path).read()
