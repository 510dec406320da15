"""Late ranks and slow steps of simulated queues, in which the cost of a fault is known (queues.py)."""

from typing import Any

import numpy as np
import pytest

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.job import slow_steps
from rankscope.analysis.job.late_rank import judge
from rankscope.analysis.job.window import Window

from .queues import Fault, simulate

BY_GPU: dict[str, Any] = {"host": (5.0, 8.0, 1.0), "device": (12.0, 24.0, 3.0)}
BY_HOST: dict[str, Any] = {"host": (10.0, 15.0, 2.0), "device": (3.0, 6.0, 1.0)}
BALANCED: dict[str, Any] = {"host": (10.0, 15.0, 2.0), "device": (9.0, 14.5, 2.0)}
BY_LOADER: dict[str, Any] = {**BY_GPU, "loader": 60.0}


@pytest.mark.parametrize("reads_loss", [False, True])
@pytest.mark.parametrize(("job", "fault", "cause"), [
    (BY_GPU, Fault(forward=12.0), "compute"),
    (BY_GPU, Fault(outside=40.0), "host"),
    (BY_HOST, Fault(outside=12.0), "host"),
    (BY_HOST, Fault(forward=40.0), "compute"),
    (BY_HOST, Fault(copy=40.0), "copy"),
    (BY_LOADER, Fault(outside=40.0), "host"),
    (BY_LOADER, Fault(loader=40.0), "data"),
])  # fmt: skip
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_late_rank_costs_what_the_step_loses(
    ranks: int, job: dict[str, Any], fault: Fault, cause: str, reads_loss: bool
) -> None:
    """If every step reads its loss, no host has a lead."""
    late = simulate(0, **job, fault=fault, ranks=ranks, reads_loss=reads_loss)
    clean = simulate(0, **job, ranks=ranks, reads_loss=reads_loss)
    found = late.verdict
    assert (found.verdict, found.rank, found.cause) == ("persistent", 1, cause)
    lost = late.mean_ms - clean.mean_ms
    assert 0.85 * lost <= found.gain_ns * 1e-6 <= lost + max(0.5, 0.05 * lost)  # each run has its own noise


@pytest.mark.parametrize("queue", [12, 26, 60])
def test_hosts_that_a_short_queue_blocks_limit_no_gain(queue: int) -> None:
    late = simulate(0, **BY_GPU, fault=Fault(forward=30.0), queue=queue)
    lost = late.mean_ms - simulate(0, **BY_GPU, queue=queue).mean_ms
    assert late.verdict.rank == 1 and late.verdict.gain_ns * 1e-6 == pytest.approx(lost, rel=0.1)


@pytest.mark.parametrize("queue", [12, 26, 60])
@pytest.mark.parametrize(("fault", "cause"), [
    (Fault(loader=6.0), "data"), (Fault(loader=40.0), "data"), (Fault(outside=40.0), "host"),
])  # fmt: skip
def test_a_slower_host_is_late_although_full_queues_block_the_others(queue: int, fault: Fault, cause: str) -> None:
    late = simulate(0, **BY_LOADER, fault=fault, queue=queue)
    lost = late.mean_ms - simulate(0, **BY_LOADER, queue=queue).mean_ms
    found = late.verdict
    assert (found.rank, found.cause) == (1, cause) and 0.5 * lost <= found.gain_ns * 1e-6 <= lost


@pytest.mark.parametrize("ms", [15.0, 40.0])
def test_loaders_limit_what_mending_a_device_brings(ms: float) -> None:
    late = simulate(0, **BY_LOADER, fault=Fault(forward=ms), ranks=4)
    lost = late.mean_ms - simulate(0, **BY_LOADER, ranks=4).mean_ms
    assert late.verdict.gain_ns * 1e-6 <= max(0.5, lost)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("job", "fault"), [
    (BY_GPU, Fault()), (BY_HOST, Fault()), (BALANCED, Fault()), (BY_LOADER, Fault()),
    (BY_HOST, Fault(copy=12.0)), (BY_HOST, Fault(forward=5.0)),
])  # fmt: skip
def test_nobody_is_late_if_nothing_is_lost(ranks: int, job: dict[str, Any], fault: Fault) -> None:
    """A device that idles for most of the step makes up for its own fault."""
    found = [simulate(seed, **job, fault=fault, ranks=ranks) for seed in range(10)]
    assert [each.verdict.rank for each in found if each.verdict.rank is not None] == []
    without_recorder = [judge(each.plain, None, Limits()).rank for each in found]
    assert sum(rank is not None for rank in without_recorder) <= 1


@pytest.mark.parametrize("every", [3, 5, 7])
@pytest.mark.parametrize("job", [BY_GPU, BY_HOST])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_checkpoint_costs_all_ranks_what_the_steps_lose(ranks: int, job: dict[str, Any], every: int) -> None:
    slow = simulate(0, **job, fault=Fault(checkpoint=40.0, every=every), ranks=ranks)
    found = slow_steps.find(slow.plain, Limits(), {})
    assert found is not None
    assert (found.ranks, found.place) == ([1], "the host")
    lost = slow.mean_ms - simulate(0, **job, ranks=ranks).mean_ms
    assert found.lost_ms == pytest.approx(lost, rel=0.1)


def test_ranks_that_take_turns_in_slow_steps_are_all_named() -> None:
    host = np.full((2, 40), 30.0)
    host[0, 5::10] += 80.0
    host[1, 10::10] += 80.0
    backward = 60.0 + host.max(0) - host  # each waits for the other
    columns = {"backward_ns": backward * 1e6, "host_ns": (host + backward) * 1e6}
    window = Window(ranks=[0, 1], steps=list(range(40)), columns=columns, counted=np.ones(40, bool))
    found = slow_steps.find(window, Limits(), {})
    assert found is not None and (found.ranks, found.place, found.lost_ms) == ([0, 1], "the host", 7 * 80 / 40)
