"""Faults planted on purpose on one rank, so that launcher and analysis can be shown to find them.

`compute`, `host` and `data` slow the rank by `ms` in every step from `scenario.step` on; `raise`, `exit`, `kill`,
`hang` and `oom` end it, or stop it, at that step; `no_trace` makes it leave its trace out.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from rankscope.conf.schema import RunConfig
from rankscope.harness.process_group import RankContext

EXIT_CODE = 7
_BEYOND_ANY_MEMORY = 1 << 62


class InjectedFault(RuntimeError):
    """The error that the scenario `raise` asks for."""


class Fault:
    """What the scenario does on this rank; nothing on the others."""

    def __init__(self, config: RunConfig, context: RankContext) -> None:
        scenario = config.scenario
        self._kind = scenario.fault if scenario.rank == context.rank else "none"
        self._first = scenario.step
        self._seconds = scenario.ms / 1000 / config.gradient_accumulation  # of each micro-step
        self._slow = False
        self._slow_loader = torch.zeros(1, dtype=torch.bool).share_memory_()  # the loader's workers read it
        self._work = extra_work(context, self._seconds) if self._kind == "compute" else None

    @property
    def drops_trace(self) -> bool:
        """Whether this rank is to leave its trace out."""
        return self._kind == "no_trace"

    def at_step(self, step: int) -> None:
        """Act at the start of `step`."""
        if step == self._first:
            self._slow = True
            self._slow_loader.fill_(self._kind == "data")
            _ENDINGS.get(self._kind, _nothing)()

    def on_host(self) -> None:
        """Hold up Python."""
        if self._slow and self._kind == "host":
            time.sleep(self._seconds)

    def on_device(self) -> None:
        """Give the device more to do."""
        if self._slow and self._work is not None:
            self._work()

    def slow_collate(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the loader's collate function, slowed on this rank by the scenario `data`."""
        return SlowCollate(collate, self._seconds, self._slow_loader) if self._kind == "data" else collate


class SlowCollate:
    """Makes batches slowly once told to: the sleep is inside the loader, in whatever process makes the batches."""

    def __init__(self, collate: Callable[[Any], Any], seconds: float, slow: Tensor) -> None:
        self._collate = collate
        self._seconds = seconds
        self._slow = slow

    def __call__(self, samples: Any) -> Any:
        """Make one batch."""
        if self._slow:
            time.sleep(self._seconds)
        return self._collate(samples)


def extra_work(context: RankContext, seconds: float) -> Callable[[], None]:
    """Return matrix products that keep the device busy for about `seconds`, measured once here."""
    side = 2048 if context.cuda else 256
    matrix = torch.randn(side, side, device=context.device)

    def run(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                torch.mm(matrix, matrix)

    run(3)
    trials = 20
    context.synchronize()
    began = time.perf_counter()
    run(trials)
    context.synchronize()
    each = (time.perf_counter() - began) / trials
    count = max(1, round(seconds / each))
    return lambda: run(count)


def _nothing() -> None:
    pass


def _raise() -> NoReturn:
    raise InjectedFault("scenario.fault=raise: this rank was told to fail here")


def _exit() -> NoReturn:
    sys.exit(EXIT_CODE)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)


def _oom() -> None:
    held = []
    while torch.cuda.is_available() and torch.cuda.is_initialized():
        held.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
    torch.empty(_BEYOND_ANY_MEMORY, dtype=torch.uint8)


_ENDINGS: dict[str, Callable[[], None]] = {"raise": _raise, "exit": _exit, "kill": _kill, "hang": _hang, "oom": _oom}
