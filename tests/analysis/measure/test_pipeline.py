"""The stages of a pipeline: messages are paired, and the bubble is that of the closed form."""

import json
from pathlib import Path

import pytest

from rankscope.analysis import load, summarise
from rankscope.analysis.core.json import Json
from rankscope.analysis.explain.rules_pipeline import even_gain_ms
from rankscope.analysis.measure.pipeline_stages import pipelines

from .pipeline_model import MS, simulate

EQUAL = [10 * MS] * 4


def summary_of(folder: Path) -> Json:
    return summarise(load(folder))


@pytest.mark.parametrize("micro_batches", [4, 8, 16])
def test_the_bubble_of_equal_stages_is_that_of_the_closed_form(micro_batches: int, tmp_path: Path) -> None:
    planted = simulate(EQUAL, micro_batches, tmp_path, steps=6)
    (found,) = summary_of(tmp_path)["pipelines"]
    first = found["stages"][0]
    share = 3 / (micro_batches + 3)  # (p - 1) / (n + p - 1)
    assert found["even_share"] == pytest.approx(share, abs=1e-4)
    assert first["bubble_ms"] / (first["bubble_ms"] + first["compute_ms"]) == pytest.approx(share, rel=0.02)
    assert first["schedule_ms"] == pytest.approx(first["bubble_ms"], rel=0.02)
    for stage, bubble in zip(found["stages"], planted, strict=True):
        assert stage["bubble_ms"] == pytest.approx(bubble / MS, rel=0.01)
        assert stage["uneven_ms"] == 0
    assert [stage["rank"] for stage in found["stages"]] == [0, 1, 2, 3]
    assert first["warm_up_ms"] == 0 and found["stages"][-1]["drain_ms"] == 0
    assert found["micro_batches"] == micro_batches
    assert "uneven_stages" not in {item["id"] for item in summary_of(tmp_path)["findings"]}


@pytest.mark.parametrize("slow", range(4))
def test_a_slow_stage_is_named_and_equal_stages_would_save_no_less(slow: int, tmp_path: Path) -> None:
    stages = [15 * MS if stage == slow else 10 * MS for stage in range(4)]
    for name, durations in (("slow", stages), ("even", [sum(stages) // 4] * 4)):
        (tmp_path / name).mkdir()
        simulate(durations, 8, tmp_path / name, steps=6)
    found, even = summary_of(tmp_path / "slow"), summary_of(tmp_path / "even")
    (finding,) = (item for item in found["findings"] if item["id"] == "uneven_stages")
    assert (finding["ranks"], finding["evidence"]["stage"]) == ([slow], slow)
    step = {key: max(row["step_ms"] for row in each["per_rank"]) for key, each in (("slow", found), ("even", even))}
    assert 0 < finding["recoverable_ms"] <= 1.05 * (step["slow"] - step["even"])


def test_a_lost_message_weakens_only_its_step(tmp_path: Path) -> None:
    simulate(EQUAL, 4, tmp_path)
    path = tmp_path / "rank2.json"
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    events.remove(next(event for event in events if event["name"] == "gloo:recv"))
    path.write_text(json.dumps(document))
    analysis = load(tmp_path)
    calls = analysis.collectives()
    lost = calls[~calls["matched"]]
    assert set(lost["step"]) == {4} and set(lost["rank"]) == {1, 2}
    assert len(lost) == 4 + 3  # all sends of rank 1 to rank 2, and the receives that are left
    steps = analysis.steps()
    unknown = steps[steps["exposed_wait_ns"].isna()]
    assert set(zip(unknown["step"], unknown["rank"], strict=True)) == {(4, 1), (4, 2)}
    assert summarise(analysis)["stragglers"]["rank"] is None


def test_equal_stages_gain_nothing(tmp_path: Path) -> None:
    simulate(EQUAL, 8, tmp_path)
    (found,) = pipelines(load(tmp_path))
    assert even_gain_ms(found) == 0


def test_a_receive_that_ends_before_its_send_is_not_paired_with_it(tmp_path: Path) -> None:
    """The clock of rank 1 is 40 ms ahead, and the ranks do not say that they share a host."""
    simulate([10 * MS] * 2, 4, tmp_path)
    for rank, ahead in ((0, 0), (1, -40_000)):
        path = tmp_path / f"rank{rank}.json"
        document = json.loads(path.read_text())
        for event in document["traceEvents"]:
            event["ts"] += ahead
        path.write_text(json.dumps(document))
    rows = summary_of(tmp_path)["per_rank"]
    assert all(row["exposed_wait_ms"] is None for row in rows)
