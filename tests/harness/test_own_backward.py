"""The moment at which a rank has its own gradients: before DistributedDataParallel waits, and in every kind of loop."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from rankscope.harness.record import own_backward
from rankscope.harness.record.ranges import Ranges
from rankscope.harness.record.step_timer import StepTimer


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_it_comes_before_the_wait_for_other_ranks(group: None) -> None:
    """The all-reduce ends only after the gradients were reported: otherwise the backward pass would never end."""
    computed = threading.Event()
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))

    def reduce_when_computed(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def complete() -> None:
            reported.append(computed.wait(30))
            future.set_result(bucket.buffer())

        threading.Thread(target=complete).start()
        return future

    reported: list[bool] = []
    model.register_comm_hook(None, reduce_when_computed)
    end = own_backward.observe(computed.set)
    model(torch.ones(2, 4)).sum().backward()
    end()
    assert reported == [True]


def test_a_range_of_several_passes_ends_with_the_last_and_steps_add_up() -> None:
    timer = StepTimer(torch.device("cpu"))
    ranges = Ranges(timer, annotate=False, nvtx=None)
    end = own_backward.observe(timer.own_gradients)
    weight = torch.ones(3, requires_grad=True)
    weight.sum().backward()  # outside of a range
    for step in range(2):
        timer.begin(step, "measured")
        for _ in range(2):
            with ranges.backward:
                torch.autograd.backward([weight.sum(), weight.prod()])
                weight.sum().backward()
    with ranges.forward:
        weight.sum().backward()
    timer.close()
    end()
    for row in timer.rows():
        assert 0 < row["backward_compute_ns"] <= row["backward_ns"]


def test_the_training_is_the_same_with_it() -> None:
    original = torch.autograd.backward
    end = own_backward.observe(lambda: None)
    leaf = torch.ones((), requires_grad=True)
    leaf.backward()  # no graph to hook into
    loss = (leaf * 2).sum()
    loss.backward()
    assert leaf.grad is not None and leaf.grad.item() == 3
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(()).backward()
    end()
    assert torch.autograd.backward is original
