"""Files of one rank: windows of one process are joined, those of two runs are refused in one line."""

from pathlib import Path

import pytest

from rankscope.analysis import load
from rankscope.analysis.core.notices import AnalysisError

from ..made_traces import PID, MadeTrace


def trace(first: int, pid: int) -> MadeTrace:
    made = MadeTrace(pid=pid)
    for number in range(first, first + 3):
        made.step(number, number * 1000, 1000)
        made.kernel(number * 1000 + 10, 900)
    return made


def test_cycles_of_one_process_are_one_rank(tmp_path: Path) -> None:
    trace(4, PID).write(tmp_path / "a.json")
    trace(24, PID).write(tmp_path / "b.json")
    assert load(tmp_path).steps_analysed == [4, 5, 6, 24, 25, 26]


def test_two_runs_are_not_one_rank_even_with_other_steps(tmp_path: Path) -> None:
    trace(4, PID).write(tmp_path / "a.json")
    trace(24, PID + 1).write(tmp_path / "b.json")
    with pytest.raises(AnalysisError, match=r"^a\.json and b\.json: both say rank 0; keep the file that belongs to"):
        load(tmp_path)
