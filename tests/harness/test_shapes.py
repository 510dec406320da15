"""The matrix: every shape of script does the same under rankscope as in torchrun's environment alone.

Exit status, stdout with losses bit for bit, files and children are compared. A rank is started as torchrun starts it,
without torchrun itself; what several ranks do is tested in tests/launch/run/test_scripts.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.conf import RunDir, parse_config, save_config

from . import process_shapes, step_shapes
from .shapes import Shape
from .tables import table_of

ENVIRONMENT = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
QUICK = {"steps": 4, "seconds": 0, "warmup_steps": 2, "run_on": True, "passes": ["plain"]}
pytestmark = pytest.mark.distributed


def lay_out(folder: Path, shape: Shape) -> Path:
    """Write the script and its files; returns the working folder."""
    files = {shape.path: shape.start + shape.code, **shape.files}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / shape.cwd).mkdir(exist_ok=True)
    return folder / shape.cwd


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return subprocess.run(
        command, cwd=cwd, env=inherited | ENVIRONMENT, capture_output=True, text=True, timeout=180, check=False
    )


def written(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize("shape", [*process_shapes.SHAPES, *step_shapes.SHAPES], ids=lambda shape: shape.name)
def test_it_does_the_same_as_without_rankscope(shape: Shape, tmp_path: Path) -> None:
    module = not (shape.script.endswith(".py") or "/" in shape.script or shape.script == "job")
    bare_cwd = lay_out(tmp_path / "bare" / "work", shape)
    bare = run([sys.executable, "-u", *(["-m"] if module else []), shape.script, *shape.args], bare_cwd)
    cwd = lay_out(tmp_path / "recorded" / "work", shape)
    run_dir = RunDir(tmp_path / "run")
    run_dir.path.mkdir()
    save_config(parse_config({**QUICK, "script": shape.script, "script_args": list(shape.args)}), run_dir.config)
    recorded = run([sys.executable, "-P", "-u", "-m", "rankscope.harness", str(run_dir.path), "plain"], cwd)

    assert recorded.stdout == bare.stdout.replace(str(tmp_path / "bare"), str(tmp_path / "recorded")), recorded.stderr
    assert recorded.returncode == bare.returncode, recorded.stderr
    assert recorded.stderr.strip().splitlines()[-1:] == bare.stderr.strip().splitlines()[-1:]
    assert written(tmp_path / "recorded" / "work") == written(tmp_path / "bare" / "work")
    rank = run_dir.for_pass("plain").rank(0)
    info = json.loads(rank.info.read_text())
    assert (info["status"], info["steps_from"], info["steps"]) == ("ok", shape.steps_from, shape.steps)
    assert info["samples_per_step"] == shape.samples and info["step_is"].startswith("a step is one ")
    rows = table_of(rank.steps)
    assert list(rows["phase"]) == ["warmup"] * 2 + ["measured"] * (shape.steps - 2)
    if shape.steps_from in ("backward", "model") or "thread" in shape.name.split():
        assert rows["data_wait_ns"].isna().all()
