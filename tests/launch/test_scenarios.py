"""Planted faults are found, in one command on a CPU: real ranks, the real analysis."""

from pathlib import Path

import pytest

from rankscope.launch.main import main

from .conftest import read_json


@pytest.mark.distributed
def test_a_slow_loader_comes_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["+scenario=slow_loader", "world_size=2", "device=cpu", f"run_dir={tmp_path / 'run'}"]
    assert main([*command, "steps=8", "seconds=4", "warmup_steps=2"]) == 0
    first = read_json(tmp_path / "run" / "analysis" / "summary.json")["findings"][0]
    assert (first["id"], first["ranks"]) == ("data_stall", [0, 1])
    assert 0 < first["recoverable_ms"] <= 100  # a sleep of 50; a gain ends where the cores would be busy
    assert first["overrides"] == ["num_workers=4"]
    printed = capfd.readouterr().out
    assert "data_stall (every rank): up to " in printed
    assert "try num_workers=4" in printed
