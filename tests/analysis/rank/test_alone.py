"""One file of a job of several ranks is incomplete, whether or not it says how many ranks there are."""

import shutil
from pathlib import Path

import pytest

from rankscope.analysis import Options, load, summarise

DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize("rank", [0, 2])
def test_one_report_of_four_is_partial(rank: int, tmp_path: Path) -> None:
    """A report of Nsight Systems states no number of ranks; NCCL's kernels show that there is another one."""
    shutil.copy(DATA / "nsys" / "big_baseline_w4" / f"rank{rank}.sqlite", tmp_path)
    summary = summarise(load(tmp_path, options=Options(cache=False)))
    assert summary["status"] == "partial" and summary["stragglers"]["verdict"] == "undetermined"
    said = " ".join(warning["message"] for warning in summary["warnings"])
    assert f"of at least {max(rank, 1) + 1} has no trace" in said
    assert summary["run"]["ranks"].startswith("at least")


def test_one_trace_of_four_is_partial(tmp_path: Path) -> None:
    shutil.copy(DATA / "traces" / "big_straggler_gpu_w4" / "rank0.json.gz", tmp_path)
    summary = summarise(load(tmp_path, options=Options(cache=False)))
    assert summary["status"] == "partial" and summary["missing_ranks"] == [1, 2, 3]
