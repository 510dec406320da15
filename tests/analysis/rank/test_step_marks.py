"""Steps without ProfilerStep: by other marks, named by the user, with repeated numbers, in several windows."""

from pathlib import Path

import pytest

from rankscope.analysis import AnalysisError, Options, load, summarise

from ..made_traces import MadeTrace


def marked(name: str, count: int = 4, took: float = 20.0, *, pid: int = 4242, begin: float = 0.0) -> MadeTrace:
    """A kernel of 400 us every 1000 us, with a mark at the end of each of these iterations."""
    trace = MadeTrace(rank=None, pid=pid)
    for index in range(count):
        trace.kernel(begin + index * 1000 + 100, 400)
        trace.add("user_annotation", name.format(index), begin + index * 1000 + 950, took)
    return trace


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("Optimizer.step#SGD.step", [1, 2, 3]),
        ("Optimizer.zero_grad#SGD.zero_grad", [0, 1, 2]),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", [0, 1, 2]),
    ],
)
def test_marks_of_torch_separate_steps(name: str, steps: list[int], tmp_path: Path) -> None:
    analysis = load(marked(name).write(tmp_path / "trace.json"))
    assert analysis.steps_analysed == steps
    assert analysis.step_table["compute_ns"].tolist() == [400_000] * 3
    assert any(notice.kind == "steps_found" for notice in analysis.notices)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("step[DECODE bs=16]", [0, 1, 2, 3]),  # SGLang
        ("execute_16_context_0(sq0)_generation_16(sq16)", [0, 1, 2, 3]),  # vLLM
        ("execute_diffusion_1_256x256", [0, 1, 2, 3]),  # xDiT
        ("train_step {}", [0, 1, 2, 3]),
    ],
)
def test_ranges_that_last_a_step(name: str, steps: list[int], tmp_path: Path) -> None:
    trace = MadeTrace()
    for index in range(4):
        trace.kernel(index * 1000 + 100, 400)
        trace.add("user_annotation", name.format(index), index * 1000, 900)
    assert load(trace.write(tmp_path / "rank0.json")).steps_analysed == steps


def test_the_user_names_the_steps(tmp_path: Path) -> None:
    path = marked("my work {}", took=900).write(tmp_path / "trace.json")
    assert load(path).steps_analysed == []
    assert load(path, options=Options(steps_from=r"my work (\d+)")).steps_analysed == [0, 1, 2], "4th: no kernel"
    unknown = load(path, options=Options(steps_from="her work"))
    assert unknown.steps_analysed == []
    (notice,) = [item for item in unknown.notices if item.kind == "no_such_range"]
    assert "my work 0" in notice.message


def test_numbers_that_begin_again_are_counted_on(tmp_path: Path) -> None:
    trace = MadeTrace()
    for index, number in enumerate((3, 4, 5, 3, 4)):
        trace.step(number, index * 1000, 1000)
        trace.step(number, index * 1000 + 5, 900)  # marked twice, one inside the other
        trace.kernel(index * 1000 + 100, 400)
    analysis = load(trace.write(tmp_path / "rank0.json"))
    assert analysis.steps_analysed == [3, 4, 5, 7, 8]
    assert any(notice.kind == "steps_repeat" for notice in analysis.notices)


def test_windows_of_one_process_are_one_rank_whatever_they_are_called(tmp_path: Path) -> None:
    for name, begin in (("rank0.json", 0.0), ("rank1.json", 50_000.0)):
        marked("work", begin=begin).write(tmp_path / name)
    summary = summarise(load(tmp_path))
    assert (summary["ranks"], summary["world_size"]) == ([0], 1)
    (totals,) = summary["totals"]
    assert totals["compute_us"] == 8 * 400
    assert totals["span_us"] == 2 * 3400 and totals["idle_us"] == 2 * 3400 - 8 * 400, "the pause is no idle time"


def test_windows_that_overlap_or_are_of_two_processes_are_not_joined(tmp_path: Path) -> None:
    for pid, begin in ((1, 0.0), (2, 50_000.0)):
        marked("work", pid=pid, begin=begin).write(tmp_path / f"trace_{pid}.json")
    with pytest.raises(AnalysisError, match="no rank inside"):
        load(tmp_path)


def test_without_any_mark_the_window_is_one_stretch_with_findings(tmp_path: Path) -> None:
    trace = MadeTrace()
    for index in range(4):
        trace.kernel(index * 1000 + 100, 400)
    summary = summarise(load(trace.write(tmp_path / "rank0.json")))
    assert summary["steps"] == [] and summary["per_rank"] == []
    (gap,) = [item for item in summary["findings"] if item["id"] == "host_bound_launch"]
    assert gap["recoverable_ms"] == pytest.approx(3 * 0.6) and gap["evidence"]["window_ms"] == pytest.approx(3.4)
