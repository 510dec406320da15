"""No room for results is one line that names the file. A limit on the size of files stands for a full disk."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.analysis.commands.analyze import main

RUNS = Path(__file__).parents[2] / "data" / "runs"
TRACES = Path(__file__).parents[2] / "data" / "traces" / "comm_bound_w4"


@pytest.mark.parametrize("command", ["analyze", "timeline", "tensorboard"])
def test_a_full_disk_is_one_line(command: str, tmp_path: Path) -> None:
    if command == "tensorboard":
        pytest.importorskip("tensorboardX")
    words = [command, str(RUNS / "resnet_w2"), "--out", str(tmp_path / "out"), "--quiet"]
    ended = subprocess.run(
        [sys.executable, "-m", "rankscope.conf.cli", *words],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)),
        # bytecode that the limit cuts would break the next process
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2, ended
    *others, last = ended.stderr.splitlines()
    assert last.startswith(f"rankscope: {tmp_path / 'out'}")
    assert not [line for line in others if "font_manager" not in line]  # matplotlib's own cache is full, too


def test_a_cache_without_room_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "cache"))
    assert main([str(TRACES), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert (tmp_path / "out" / "report.html").exists()
