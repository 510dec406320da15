"""Faults planted on purpose on one rank, so that launcher and analysis can be shown to find them.

`compute`, `host` and `data` slow the rank by `ms` in every step from `scenario.step` on; `raise`, `exit`, `kill`, `hang`
and `oom` end it, or stop it, at that step; `no_trace` makes it leave its trace out.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.utils.data import get_worker_info

from rankscope.conf.schema import RunConfig, ScenarioConfig
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
        self._scenario = scenario
        self._ms = scenario.ms / config.gradient_accumulation  # of each micro-step
        self._slow = False
        self._work = extra_work(context, self._ms) if self._kind == "compute" else None

    @property
    def drops_trace(self) -> bool:
        """Whether this rank is to leave its trace out."""
        return self._kind == "no_trace"

    def at_step(self, step: int) -> None:
        """Act at the start of `step`."""
        self._slow = step >= self._scenario.step
        if step == self._scenario.step and self._kind in _ENDINGS:
            _ENDINGS[self._kind]()

    def on_host(self) -> None:
        """Hold up Python."""
        if self._slow and self._kind == "host":
            time.sleep(self._ms / 1000)

    def on_device(self) -> None:
        """Give the device more to do."""
        if self._slow and self._work is not None:
            self._work()

    def in_loader(self, collate: Callable[[Any], Any], batches_of_epoch: int) -> Callable[[Any], Any]:
        """Return the loader's collate function, slowed on this rank by the scenario `data`."""
        return collate


_ = (ScenarioConfig, get_worker_info)


def extra_work(context: RankContext, ms: float) -> Callable[[], None]:
    """Return matrix products that keep the device busy for about `ms`, measured once here."""
    side = 2048 if context.cuda else 256
    a = torch.randn(side, side, device=context.device)

    def run(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                torch.mm(a, a)

    run(3)
    trial = 20
    context.synchronize()
    began = time.perf_counter()
    run(trial)
    context.synchronize()
    count = max(1, round(ms / 1000 / ((time.perf_counter() - began) / trial)))
    return lambda: run(count)


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
    while torch.cuda.is_available():
        held.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
    torch.empty(_BEYOND_ANY_MEMORY, dtype=torch.uint8)


_ENDINGS: dict[str, Callable[[], None]] = {"raise": _raise, "exit": _exit, "kill": _kill, "hang": _hang, "oom": _oom}
