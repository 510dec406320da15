"""`rankscope analyze` as a user meets it: exit status, one line for bad input, files, light imports."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "data"
RUN = DATA / "runs" / "resnet_w2"


def analyze(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rankscope.conf.cli", "analyze", *map(str, arguments)]
    environment = os.environ | {"COLUMNS": "80"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=180)


def test_a_run_gets_its_analysis_folder(tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    done = analyze(tmp_path / "run")
    assert done.returncode == 0 and done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    folder = tmp_path / "run" / "analysis"
    assert {"summary.json", "report.md", "tables"} <= {path.name for path in folder.iterdir()}
    assert {"collectives", "steps"} <= {path.stem for path in (folder / "tables").glob("*.parquet")}
    assert json.loads((folder / "summary.json").read_text())["status"] == "ok_with_warnings"


def test_json_on_stdout_is_only_json(tmp_path: Path) -> None:
    done = analyze(DATA / "traces" / "cuda_graphs_w2", "--json", "-")
    assert done.returncode == 0
    assert json.loads(done.stdout)["stragglers"]["rank"] == 1


def test_partial_is_3_unless_allowed() -> None:
    case = DATA / "cases" / "T04-truncated-json"
    assert analyze(case, "--quiet").returncode == 3
    assert analyze(case, "--quiet", "--allow-partial").returncode == 0


def _empty(folder: Path) -> Path:
    return folder


def _zero_bytes(folder: Path) -> Path:
    (folder / "rank0.json").touch()
    return folder / "rank0.json"


def _no_trace(folder: Path) -> Path:
    (folder / "a.json").write_text('{"a": 1}')
    return folder / "a.json"


def _binary(folder: Path) -> Path:
    (folder / "rank0.json.gz").write_bytes(b"\x1f\x8b" + bytes(range(256)))
    return folder


def _no_rank(folder: Path) -> Path:
    text = (DATA / "cases" / "O04-no-communication" / "rank0.json").read_text().replace('"rank": 0,', "")
    for name in ("a.json", "b.json"):
        (folder / name).write_text(text)
    return folder


def _crashed_run(folder: Path) -> Path:
    (folder / "run.json").write_text('{"layout": 1, "status": "failed"}')
    return folder


def _newer_run(folder: Path) -> Path:
    (folder / "run.json").write_text('{"layout": 99}')
    return folder


def _nothing(folder: Path) -> Path:
    return folder / "nowhere"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_empty, "no trace files"),
        (_zero_bytes, "rank0.json: empty"),
        (_no_trace, "a.json: no traceEvents"),
        (_binary, "rank0.json.gz:"),
        (_no_rank, "name the files rank0.json"),
        (_crashed_run, "no trace"),
        (_newer_run, "layout 99 is newer"),
        (_nothing, "does not exist"),
    ],
)
def test_bad_input_is_one_line(make, says: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    done = analyze(make(tmp_path))
    assert done.returncode == 2 and done.stdout == ""
    assert says in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_analysis_starts_light() -> None:
    code = "import sys, rankscope.analysis.commands.analyze; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "pandas", "matplotlib", "numba", "hydra"} & set(loaded)
