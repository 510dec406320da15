"""Steps and ranges of a loop from torch's own calls, told to a listener that keeps what it hears."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rankscope.conf.contract import StepRow
from rankscope.harness.observe.marks import Marks, Source
from rankscope.harness.observe.samples import samples_of
from rankscope.harness.record.ranges import Ranges
from rankscope.harness.record.step_timer import StepTimer


class Listener:
    """A target whose steps are those of one source."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.timer = StepTimer(torch.device("cpu"))
        self.ranges: Ranges | None = Ranges(self.timer, annotate=False, nvtx=None)
        self.batches: list[tuple[int | None, bool]] = []
        self.marks = Marks(self)
        self.steps = 0
        self.timer.begin(0, "measured")

    def mark(self, source: Source) -> None:
        if source == self.source:
            self.steps += 1
            self.timer.begin(self.steps, "measured")

    def changed(self, source: Source) -> None:
        self.mark(source)

    def batch(self, samples: int | None, *, first: bool) -> None:
        self.batches.append((samples, first))

    def rows(self) -> list[StepRow]:
        return self.timer.rows()[: self.steps]


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener("optimizer")
    found.marks.install()
    yield found
    found.marks.remove()


def model_and_loader(samples: int = 12, batch: int = 3) -> tuple[nn.Module, DataLoader[Any]]:
    torch.manual_seed(0)
    return nn.Linear(4, 1), DataLoader(TensorDataset(torch.randn(samples, 4)), batch)


def test_an_ordinary_loop(listener: Listener) -> None:
    model, loader = model_and_loader()
    optimizer = torch.optim.SGD(model.parameters())
    for (inputs,) in loader:
        model(inputs).sum().backward()
        optimizer.step()
    assert listener.steps == 4
    assert listener.batches == [(3, True), (3, False), (3, False), (3, False)]
    for row in listener.rows():
        parts = [row[name] for name in ("data_wait_ns", "forward_ns", "backward_ns", "optimizer_ns")]
        assert min(parts) > 0 and sum(parts) <= row["host_ns"]


def test_several_batches_make_one_optimizer_step(listener: Listener) -> None:
    model, loader = model_and_loader()
    optimizer = torch.optim.SGD(model.parameters())
    for number, (inputs,) in enumerate(loader):
        model(inputs).sum().backward()
        if number % 2:
            optimizer.step()
    assert (listener.steps, len(listener.batches)) == (2, 4)


def test_a_step_that_the_scaler_leaves_out_is_a_step(listener: Listener) -> None:
    model, loader = model_and_loader()
    optimizer = torch.optim.SGD(model.parameters(), fused=False)
    scaler = torch.amp.GradScaler("cpu")
    for number, (inputs,) in enumerate(loader):
        optimizer.zero_grad()
        loss = model(inputs).sum() * (torch.inf if number == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert (listener.steps, listener.marks.skipped) == (4, 1)


def test_of_several_optimizers_the_first_counts_and_then_another(listener: Listener) -> None:
    model, loader = model_and_loader()
    first: torch.optim.Optimizer | None = torch.optim.SGD(model.parameters())
    second = torch.optim.Adam(model.parameters())
    for (inputs,) in loader:
        model(inputs).sum().backward()
        assert first is not None
        first.step()
        second.step()
    assert listener.steps == 4
    first = None
    for (inputs,) in loader:
        model(inputs).sum().backward()
        second.step()
    assert listener.steps == 8


def test_an_optimizer_inside_backward_ends_the_step_after_it(listener: Listener) -> None:
    model, loader = model_and_loader()
    optimizer = torch.optim.SGD(model.parameters())
    weight = next(model.parameters())
    weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    for (inputs,) in loader:
        model(inputs).sum().backward()
    assert listener.steps == 4
    assert all(row["optimizer_ns"] is None and row["backward_ns"] > 0 for row in listener.rows())


def test_the_backward_pass_of_a_closure_is_none_of_the_optimizer(listener: Listener) -> None:
    model, loader = model_and_loader()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    for (inputs,) in loader:

        def closure(inputs: torch.Tensor = inputs) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(inputs).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    assert listener.steps == 4
    for row in listener.rows():
        assert min(row["forward_ns"], row["backward_ns"], row["optimizer_ns"]) > 0
    assert all(row["backward_ns"] + row["optimizer_ns"] < row["host_ns"] for row in listener.rows())


def test_batches_are_the_steps_where_nothing_is_optimized() -> None:
    listener = Listener("loader")
    listener.marks.install()
    try:
        model, loader = model_and_loader()
        for _ in range(2):
            for (inputs,) in loader:
                model(inputs)
    finally:
        listener.marks.remove()
    # begun before the first batch; an epoch's end makes no step of its own
    assert listener.steps == 1 + 8
    assert all(row["forward_ns"] > 0 for row in listener.rows()[1:])


def test_the_script_s_own_range_goes_first(listener: Listener) -> None:
    model, loader = model_and_loader()
    optimizer = torch.optim.SGD(model.parameters())
    assert listener.ranges is not None
    for (inputs,) in loader:
        listener.marks.give_way("forward")
        with listener.ranges.forward:
            loss = model(inputs).sum()
        with listener.ranges.optimizer:
            loss.backward()
            optimizer.step()
    assert all(row["backward_ns"] is None and row["forward_ns"] > 0 for row in listener.rows())


def test_nothing_is_left_behind() -> None:
    before = (vars(DataLoader)["__iter__"], torch.autograd.backward, vars(torch.amp.GradScaler)["step"])
    listener = Listener("optimizer")
    listener.marks.install()
    assert torch.autograd.backward is not before[1]
    listener.marks.remove()
    assert (vars(DataLoader)["__iter__"], torch.autograd.backward, vars(torch.amp.GradScaler)["step"]) == before
    model, _ = model_and_loader()
    model(torch.ones(1, 4)).sum().backward()
    torch.optim.SGD(model.parameters()).step()
    assert listener.steps == 0


def test_the_samples_of_a_batch() -> None:
    assert samples_of({"ids": torch.zeros(5, 7), "mask": torch.zeros(5)}) == 5
    assert samples_of(["name", (torch.zeros(2), torch.zeros(9))]) == 2
    assert samples_of("text") is None and samples_of(torch.tensor(1.0)) is None
