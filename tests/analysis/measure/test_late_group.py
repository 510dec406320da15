"""What late ranks are within the job: the ranks of one group, or of one stage of a pipeline, or neither."""

from pathlib import Path

import pytest

from rankscope.analysis import load, summarise
from rankscope.analysis.measure.late_group import LateGroup, late_group
from rankscope.analysis.measure.pipeline_stages import Pipeline, Stage
from rankscope.analysis.show.words import verdict_sentence
from tests.analysis.simulated_jobs import MS, Plan, simulate


def job(late: frozenset[int], folder: Path) -> None:
    """Write the traces of 8 ranks: groups of two reduce inside the forward pass, groups of four the gradients."""
    simulate(
        Plan(world=8, steps=6, buckets=2, seed=3, fault="compute", fault_ns=30 * MS, fault_ranks=late, tensor=2), folder
    )


@pytest.mark.parametrize(
    ("late", "dimension"),
    [({4, 5}, "groups of 2"), ({0, 2, 4, 6}, "groups of 4, every 2 ranks"), ({4}, None), ({3, 4}, None)],
)
def test_late_ranks_that_are_a_group_are_called_so(late: set[int], dimension: str | None, tmp_path: Path) -> None:
    job(frozenset(late), tmp_path)
    found = summarise(load(tmp_path))
    said = verdict_sentence(found)
    if dimension is None:
        assert found["stragglers"]["group"] is None and "one of the groups" not in said
    else:
        assert found["stragglers"]["ranks"] == sorted(late)
        assert found["stragglers"]["group"] == {"dimension": dimension, "position": None}
        assert said.endswith(f"these are the ranks of one of the {dimension}.")


@pytest.mark.parametrize(
    ("late", "stage"), [({1, 3, 5, 7}, 0), ({0, 2, 4, 6}, 1), ({0, 2}, None), ({0, 1}, None), (set(range(8)), None)]
)
def test_a_stage_goes_by_the_order_of_messages(late: set[int], stage: int | None, tmp_path: Path) -> None:
    """Four pipelines whose first stages are the odd ranks."""
    job(frozenset(), tmp_path)
    times = dict.fromkeys(("compute_ms", "bubble_ms", "warm_up_ms", "drain_ms", "schedule_ms", "uneven_ms"), 1.0)
    staged = [
        Pipeline(
            stages=[Stage(rank=rank, **times) for rank in (odd, odd - 1)], micro_batches=4, step_ms=9.0, even_share=0.2
        )
        for odd in (1, 3, 5, 7)
    ]
    found = late_group(late, load(tmp_path), staged)
    if stage is not None:
        assert found == LateGroup(dimension="pp", position=stage)
    else:
        assert found is None or found.dimension != "pp" or found.position is None
