"""What steps vary by on their own, and ranks that wait for a core: hand-made steps."""

import numpy as np
import pytest

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.job import slow_steps
from rankscope.analysis.job.cpu_use import CpuUse, data_wait_ms
from rankscope.analysis.job.late_rank import judge
from rankscope.analysis.job.variation import fence, of_steps, spread
from rankscope.analysis.job.window import Matrix, Window

MS = 1e6
STEPS = 80


def window(own: Matrix, *, core_wait: Matrix | None = None, sleep: Matrix | None = None) -> Window:
    """Two ranks on a CPU: `own` ms of forward pass on a core, waits for a core in it, sleep; backward waits for all."""
    waited = np.zeros_like(own) if core_wait is None else core_wait
    slept = np.zeros_like(own) if sleep is None else sleep
    forward = own + waited + slept
    backward = 10 + forward.max(0) - forward
    columns = {
        "forward": forward,
        "backward": backward,
        "backward_compute": np.full_like(own, 10.0),
        "host": forward + backward,
        "cpu": own + 10,
        "core_wait": waited,
        "data_wait": np.zeros_like(own),
        "data_cpu": np.zeros_like(own),
    }
    return Window(
        ranks=[0, 1],
        steps=list(range(own.shape[1])),
        columns={f"{name}_ns": values * MS for name, values in columns.items()},
        counted=np.ones(own.shape[1], bool),
    )


def noise(scale: float, seed: int = 1) -> Matrix:
    return np.asarray(30 + np.random.default_rng(seed).normal(0, scale, (2, STEPS)))


@pytest.mark.parametrize(("late_ms", "rank"), [(1.0, None), (4.0, 1)])
def test_a_rank_must_be_later_than_what_steps_vary_by(late_ms: float, rank: int | None) -> None:
    """Steps vary by a standard deviation of 2 ms: their interquartile range is 2.7 ms."""
    own = noise(2.0)
    own[1] += late_ms
    found = judge(window(own), None, Limits())
    assert (found.rank, found.cause) == (rank, None if rank is None else "compute")


def test_a_small_lateness_counts_if_steps_do_not_vary() -> None:
    own = noise(0.02)
    own[1] += 1.5
    assert judge(window(own), None, Limits()).rank == 1


def test_ranks_that_vary_together_do_not_hide_a_late_one() -> None:
    """Batches of very different lengths, the same on both ranks: only their difference counts."""
    own = noise(0.1) + np.random.default_rng(2).uniform(0, 40, STEPS)
    own[1] += 3
    assert spread(window(own))[1] < MS
    assert judge(window(own), None, Limits()).rank == 1


def test_a_rank_that_waits_for_a_core_is_not_late_and_the_reason_is_said() -> None:
    waits = np.zeros((2, STEPS))
    waits[1] = 12 + np.random.default_rng(3).uniform(0, 6, STEPS)
    found = judge(window(noise(0.5), core_wait=waits), None, Limits())
    assert (found.verdict, found.rank) == ("none", None)
    assert found.reason is not None and "rank 1" in found.reason and "core" in found.reason


def test_a_rank_that_computes_longer_is_named_although_both_wait_for_cores() -> None:
    own = noise(0.5)
    own[1] += 10
    waits = own * np.random.default_rng(4).uniform(0.5, 1.0, (2, STEPS))
    found = judge(window(own, core_wait=waits), None, Limits())
    assert (found.rank, found.cause, found.part) == (1, "compute", "forward")
    assert found.gain_ns <= 10 * MS * 1.05


def test_a_rank_that_sleeps_in_its_forward_pass_has_a_late_host() -> None:
    sleep = np.zeros((2, STEPS))
    sleep[1] = 8
    found = judge(window(noise(0.5), sleep=sleep), None, Limits())
    assert (found.rank, found.cause, found.part) == (1, "host", "forward")


def test_the_fence_of_slow_steps_comes_from_the_usual_ones() -> None:
    """20, 21, ... 30: median 25, first quartile 22.5, range 5; a third of slow steps beside them changes little."""
    usual = np.arange(20.0, 31.0)
    assert of_steps(usual) == 5 and fence(usual) == 25 + 3.5 * 5
    assert fence(np.concatenate([usual, np.full(4, 500.0)])) < 60


@pytest.mark.parametrize(("waited", "share"), [(0.0, 0.0), (30.0, 0.75)])
def test_slow_steps_say_how_much_of_them_is_waiting_for_a_core(waited: float, share: float) -> None:
    own, waits = np.full((2, STEPS), 20.0), np.zeros((2, STEPS))
    own[1, 5::20] += 40 - waited
    waits[1, 5::20] = waited
    found = slow_steps.find(window(own, core_wait=waits), Limits(), {})
    assert found is not None and found.slow_ms - found.usual_ms == 40 and found.core_wait_share == share


def test_what_ranks_got_of_the_cpu_and_what_else_they_did() -> None:
    """Rank 0 computes 30 + 10 ms; rank 1 the same, waits 10 ms for a core, and sleeps 5 ms."""
    own, waits, sleep = np.full((2, 9), 30.0), np.zeros((2, 9)), np.zeros((2, 9))
    waits[1], sleep[1] = 10, 5
    made = window(own, core_wait=waits, sleep=sleep)
    found = CpuUse.of(made)
    assert found is not None and found.least == 1
    assert found.got == {0: 1.0, 1: 0.8} and found.work_ms == {0: 40.0, 1: 50.0}
    assert found.idle_ms == {0: 0.0, 1: 5.0}  # rank 0 waits 15 ms for rank 1, which is no idle time of its own
    without = {name: values for name, values in made.columns.items() if name != "core_wait_ns"}
    assert CpuUse.of(Window(ranks=[0, 1], steps=made.steps, columns=without, counted=made.counted)) is None


def test_waiting_for_a_core_is_no_waiting_for_the_loader() -> None:
    """5 ms in the loader of a step of 50 ms, a fifth of which is waiting for a core: 4 ms."""
    waits = np.full((2, 9), 10.0)
    made = window(np.full((2, 9), 30.0), core_wait=waits)
    made.columns["data_wait_ns"][:] = 5 * MS
    assert data_wait_ms(made) == pytest.approx(4.0)


@pytest.mark.parametrize("planted_ms", [0.0, 40.0])
def test_one_long_step_of_one_rank_is_seen_among_waits_for_cores(planted_ms: float) -> None:
    """Waits of up to 40 ms come in every other step; the job's step alone does not tell 40 ms of work from them."""
    own, waits = noise(1.0), np.random.default_rng(2).uniform(0, 40, (2, STEPS))
    own[1, 13] += planted_ms
    found = slow_steps.find(window(own, core_wait=waits), Limits(), {})
    if not planted_ms:
        assert found is None
    else:
        assert found is not None
        assert (found.steps, found.ranks, found.waiting, found.place) == ([13], [1], [0], "forward")
        assert found.lost_ms < 1.0 < found.slow_ms - found.usual_ms


def test_slow_steps_that_began_in_the_warm_up_are_counted_from_the_first_counted_one() -> None:
    own = noise(0.5)
    own[:, 8:12] += 100
    made = window(own)
    made.counted[:10] = False
    found = slow_steps.find(made, Limits(), {})
    assert found is not None and found.steps == [10]
    assert found.slow_ms - found.usual_ms == pytest.approx(200, rel=0.05)  # one event of two counted steps
