"""Files of one rank: windows of one process are joined, those of two runs are refused in one line."""

from pathlib import Path

import pytest

from rankscope.analysis import load, summarise
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.show.words import verdict_sentence

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


def test_ranks_that_share_no_collective_are_said_to_train_on_their_own(tmp_path: Path) -> None:
    for rank in (0, 1):
        made = trace(4, PID + rank)
        made.info = {"backend": "gloo", "rank": rank, "world_size": 2}
        made.write(tmp_path / f"rank{rank}.json")
    analysis = load(tmp_path)
    (notice,) = [one for one in analysis.notices if one.kind == "independent_ranks"]
    assert "DistributedDataParallel" in notice.message
    assert verdict_sentence(summarise(analysis)).startswith("The ranks share no collective, so each trains on its own")
    assert analysis.verdict.verdict == "undetermined"
    (tmp_path / "rank1.json").unlink()
    assert not [one for one in load(tmp_path).notices if one.kind == "independent_ranks"], "its partner is unknown"


def test_foreign_traces_get_no_keys_of_another_program(tmp_path: Path) -> None:
    made = trace(4, PID)
    for number in range(4, 7):
        made.kernel(number * 1000 + 910, 80, "Memcpy HtoD (Pageable -> Device)", call="cudaMemcpyAsync")
    findings = load(made.write(tmp_path / "rank0.json")).findings
    assert findings and all(item.overrides == [] for item in findings)


def test_a_step_after_lost_records_does_not_count_as_idle(tmp_path: Path) -> None:
    """The kernel of step 6 is lost, so step 7 seems to begin where step 5 ended."""
    made = MadeTrace()
    for number in range(4, 10):
        made.step(number, number * 1000, 1000)
        if number == 6:
            made.call("cudaLaunchKernel", number * 1000 + 5)
        else:
            made.kernel(number * 1000 + 10, 980)
    analysis = load(made.write(tmp_path / "rank0.json"))
    assert analysis.steps_analysed == [4, 5, 8, 9]
    assert not [item for item in analysis.findings if item.id in ("host_gap", "host_bound_launch")]
