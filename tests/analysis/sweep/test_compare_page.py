"""`compare --out` with an earlier summary.json: it may be of another version, or anybody's."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rankscope.conf.cli import main

RUNS = Path(__file__).parents[2] / "data" / "runs"
CHANGES: list[dict[str, Any]] = [
    {},
    {"findings": [{"id": 7}]},
    {"stragglers": {"verdict": "late"}},
    {"slow_steps": {"steps": "all"}},
    {"warnings": [{}], "status": "\ud800"},
]


@pytest.mark.parametrize("change", CHANGES)
def test_an_odd_summary_is_left_out(change: dict[str, Any], tmp_path: Path) -> None:
    run = shutil.copytree(RUNS / "resnet_w2", tmp_path / "run")
    assert main(["analyze", str(run), "--quiet"]) in (0, 3)
    summary = run / "analysis" / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | change))
    assert main(["compare", str(run), str(run), "--out", str(tmp_path), "--quiet"]) == 0
    assert ("at being late" in (tmp_path / "compare.html").read_text()) == (not change)
