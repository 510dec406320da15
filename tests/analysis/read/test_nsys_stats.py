"""nsys itself as a judge of our sums: `nsys stats` on the same exports, where nsys is installed."""

import csv
import io
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from rankscope.analysis.core.record_kinds import KERNEL
from rankscope.analysis.core.table import Table
from rankscope.analysis.read.nsys import reader as nsys
from rankscope.conf import nsys_tool

EXPORTS = Path(__file__).parents[2] / "data" / "nsys"
PROGRAM = nsys_tool.find()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="nsys is not installed; .ci/install-nsys shows how to get it")


def stats(export: Path, report: str) -> list[dict[str, str]]:
    command = [str(PROGRAM), "stats", "-q", "--report", report, "--format", "csv", "-o", "-", str(export)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    rows = list(csv.DictReader(io.StringIO(done.stdout.strip())))
    assert rows, done.stderr  # nsys stats ends with 0 after an error too
    return rows


def sums(table: Table) -> dict[str, tuple[int, int]]:
    """Return of each name the total duration (ns) and the number of records."""
    total: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for name, duration in zip(table.texts("name"), table["duration"].tolist(), strict=True):
        total[name or ""] += duration
        count[name or ""] += 1
    return {name: (total[name], count[name]) for name in total}


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return Path(shutil.copy(EXPORTS / "big_baseline_w4" / "rank2.sqlite", tmp_path))  # nsys may write into it


def test_kernels(export: Path) -> None:
    device = nsys.read(export).device
    said = {
        row["Name"]: (int(row["Total Time (ns)"]), int(row["Instances"])) for row in stats(export, "cuda_gpu_kern_sum")
    }
    assert sums(device.take(device["activity"] == KERNEL)) == said


def test_calls(export: Path) -> None:
    said = {
        re.sub(r"_v\d+$", "", row["Name"]): (int(row["Total Time (ns)"]), int(row["Num Calls"]))
        for row in stats(export, "cuda_api_sum")
    }
    assert sums(nsys.read(export).launches) == said


def test_ranges(tmp_path: Path) -> None:
    export = Path(shutil.copy(EXPORTS / "gloo_w2" / "rank_1.sqlite", tmp_path))
    said = {row["Range"]: (int(row["Total Time (ns)"]), int(row["Instances"])) for row in stats(export, "nvtx_sum")}
    ours = sums(nsys.read(export).host)
    for name in ("train:forward", "train:backward", "train:optimizer"):
        assert ours[name] == said[name]
    assert ours["data_wait"] == said["train:data"]
    steps = [value for name, value in ours.items() if name.startswith("ProfilerStep#")]
    assert (sum(total for total, _ in steps), len(steps)) == said["train:step"]
