"""`rankscope demo` with real ranks: the healthy job is called healthy, and the planted rank is named."""

import json
from pathlib import Path

import pytest

from rankscope.launch.demo import main


def test_demo_tells_the_healthy_job_from_the_faulty_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([f"runs_dir={tmp_path}", "passes=[plain]"]) == 0
    healthy, faulty = (
        json.loads(next(tmp_path.glob(f"*{name}/analysis/summary.json")).read_text())
        for name in ("demo-healthy", "demo-slow-rank")
    )
    assert healthy["stragglers"]["rank"] is None
    assert [item["id"] for item in healthy["findings"] if item["severity"] != "low"] == []
    assert (faulty["stragglers"]["rank"], faulty["stragglers"]["cause"]) == (1, "data")
    said = capfd.readouterr()
    assert "1 of 2. A healthy job" in said.err and "2 of 2. The same job" in said.err
    assert "Findings above low: none." in said.out and "Rank 1 is late" in said.out
    assert said.out.count("report.html") == 2
