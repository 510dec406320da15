"""Faults planted on purpose, to show that the launcher and the analysis find them.

A scenario is a list of faults, each of one kind, on one rank (or all, or all in turn), over some steps. `slow.py` has
the kinds that cost time. This module has the kinds that end a rank, the table of all kinds, and `Faults`, which the
loop calls.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from rankscope.conf import ConfigError
from rankscope.conf.schema import RunConfig
from rankscope.harness.faults import slow as slow_faults
from rankscope.harness.faults.base import Collate, Fault
from rankscope.harness.group.process_group import RankContext

EXIT_CODE = 7
_BEYOND_ANY_MEMORY = 1 << 62


class InjectedFault(RuntimeError):
    """The error of the fault `raise`."""


class Ending(Fault):
    """Ends or hangs the rank at the first step in which it is active."""

    def at_step(self, step: int) -> None:
        _ENDINGS[self.config.fault]()


class NoTrace(Fault):
    """The rank does not write its trace."""

    drops_trace = True


def _raise() -> None:
    raise InjectedFault("scenario.fault=raise: this rank was told to fail here")


def _exit() -> None:
    sys.exit(EXIT_CODE)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang() -> None:
    while True:
        time.sleep(3600)


def _oom() -> None:
    held = []
    while torch.cuda.is_available() and torch.cuda.is_initialized():
        held.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
    torch.empty(_BEYOND_ANY_MEMORY, dtype=torch.uint8)


_ENDINGS: dict[str, Callable[[], None]] = {"raise": _raise, "exit": _exit, "kill": _kill, "hang": _hang, "oom": _oom}

KINDS: dict[str, type[Fault]] = {
    **dict.fromkeys(_ENDINGS, Ending),
    "no_trace": NoTrace,
    "compute": slow_faults.Compute,
    "host": slow_faults.Host,
    "data": slow_faults.Data,
    "storage": slow_faults.Storage,
    "decode": slow_faults.Decode,
    "garbage": slow_faults.Garbage,
    "copy": slow_faults.Copy,
    "item": slow_faults.Item,
    "cpu_copy": slow_faults.CpuCopy,
    "synchronize": slow_faults.Synchronize,
    "allocator": slow_faults.Allocator,
    "lengths": slow_faults.Lengths,
}


class Faults:
    """All faults of a scenario on this rank; the loop and the training step call it at each place."""

    def __init__(self, config: RunConfig, context: RankContext) -> None:
        self._all = [KINDS[item.fault](item, context, config) for item in config.scenario.planted_faults]
        for fault in self._all:
            if fault.needs_gpu and not context.cuda:
                raise ConfigError(f"scenario.fault={fault.config.fault}: needs a GPU, and this rank has none")

    @property
    def drops_trace(self) -> bool:
        """Whether this rank does not write its trace."""
        return any(fault.drops_trace and fault.here for fault in self._all)

    def at_step(self, step: int) -> None:
        """Begin `step` for every fault."""
        for fault in self._all:
            fault.begin(step)

    def attach(self, module: nn.Module) -> None:
        """Let the faults hook the model."""
        for fault in self._all:
            fault.attach(module)

    def on_batch(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Change the batch while it is on the host."""
        for fault in self._all:
            if fault.active:
                inputs, targets = fault.on_batch(inputs, targets)
        return inputs, targets

    def act(self, place: str, *arguments: Any) -> None:
        """Call the method `place` of every active fault."""
        for fault in self._all:
            if fault.active:
                getattr(fault, place)(*arguments)

    def slow_collate(self, collate: Collate) -> Collate:
        """Return the loader's collate function, slowed if a fault acts on it."""
        slow = [fault for fault in self._all if fault.here and _overrides(fault, "per_batch")]
        return SlowCollate(collate, slow) if slow else collate

    def slow_dataset(self, dataset: Dataset[Any]) -> Dataset[Any]:
        """Return the data set, slowed if a fault acts on it."""
        slow = [fault for fault in self._all if fault.here and _overrides(fault, "per_sample")]
        return SlowDataset(dataset, slow) if slow else dataset


def _overrides(fault: Fault, place: str) -> bool:
    return getattr(type(fault), place) is not getattr(Fault, place)


class SlowCollate:
    """Collates slowly while a fault is active, in the process that collates."""

    def __init__(self, collate: Collate, faults: list[Fault]) -> None:
        self._collate = collate
        self._faults = faults

    def __call__(self, samples: Any) -> Any:
        for fault in self._faults:
            if fault.active:
                fault.per_batch()
        return self._collate(samples)


class SlowDataset(Dataset[Any]):
    """Reads samples slowly while a fault is active, in the process that reads them."""

    def __init__(self, dataset: Dataset[Any], faults: list[Fault]) -> None:
        self._dataset = dataset
        self._faults = faults

    def __len__(self) -> int:
        length: int = len(self._dataset)  # type: ignore[arg-type]
        return length

    def __getitem__(self, index: int) -> Any:
        for fault in self._faults:
            if fault.active:
                fault.per_sample()
        return self._dataset[index]
