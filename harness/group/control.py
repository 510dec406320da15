"""A group of all ranks next to the job's own groups: for barriers, clocks and small exchanges, over gloo on the hosts.

It uses the store of torchrun's agent instead of the default process group. So a script may create and destroy groups
as it likes, and our collectives are never counted among its own. It launches no kernel.
"""

import os
from collections import Counter, deque
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rankscope.harness.group.meetings import Meetings

JOIN_S = 120.0  # timeout for all ranks to arrive for the first time
_WAIT_S = 10.0  # how long a rank of a script waits at a meeting, at least
_TAG = 7
# The last exchanges. A gloo thread that frees a Python tensor takes the interpreter's lock. If the interpreter has
# ended by then, the process ends with SIGABRT. So gloo must never hold the last reference.
_KEPT: deque[Any] = deque(maxlen=64)
_CONNECTED: Counter[str] = Counter()  # groups of this process by name: the store still has the addresses of the last


class ControlError(RuntimeError):
    """Not all ranks arrived in time."""


class Control:
    """All ranks of the job. All ranks must call `gather_later` and `share` in the same order.

    `barrier` may be called by some ranks only: it says whether all came (`Meetings`).
    """

    def __init__(self, store: Any, rank: int, world_size: int, meetings: Meetings, *, timeout_s: float) -> None:
        """Form the group; every rank must do so now."""
        self.rank = rank
        self.world_size = world_size
        self.meetings = meetings
        self._store = store
        c10d: Any = dist
        self._group = c10d.ProcessGroupGloo(store, rank, world_size, timedelta(seconds=timeout_s))

    def barrier(self, purpose: str) -> bool:
        """Wait for all ranks; False if they are apart. Returns at almost the same time everywhere."""
        if not self.meetings.meet(purpose):
            return False
        self._group.barrier().wait()
        return True

    def send(self, message: Tensor, rank: int) -> None:
        self._group.send([message], rank, _TAG).wait()

    def receive(self, message: Tensor, rank: int) -> None:
        """Fill `message` with what one rank sends."""
        self._group.recv([message], rank, _TAG).wait()

    def share(self, key: str, value: str | None) -> str:
        """Return the `value` that rank 0 passes for `key`; the values of other ranks are ignored."""
        if self.rank == 0:
            self._store.set(key, value or "")
        return bytes(self._store.get(key)).decode()

    def gather_later(self, values: Tensor) -> tuple[list[Tensor], dist.Work]:
        """Start an all-gather of `values`; returns the tensors that it fills, and the handle to wait for."""
        gathered = [torch.empty_like(values) for _ in range(self.world_size)]
        work = self._group.allgather([gathered], [values])
        _KEPT.append((values, gathered))
        return gathered, work


class Lobby:
    """Where the ranks of a script wait for each other before they form a group. Not all of them may ever come."""

    def __init__(self, name: str, *, timeout_s: float, patience_s: float, wait_s: float = _WAIT_S) -> None:
        self.name = name
        self._rank, self._world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._timeout_s = timeout_s
        self._store = _store(name, self._rank, self._world_size, timeout_s)
        self.meetings = Meetings(self._store, self._rank, self._world_size, least_s=wait_s, most_s=patience_s)

    def enter(self, *, patient: bool = False) -> bool:
        """Try to begin together; False: not now."""
        return self.meetings.enter(patient=patient)

    def absent(self) -> str:
        """Return a text on the ranks that never came."""
        ranks = self.meetings.absent()
        who = f"rank {', '.join(map(str, ranks))} made no step of that kind" if ranks else "their steps never met"
        return f"{who}; try steps_from=loader, or call Recorder().step() once a step on every rank"

    def form(self) -> Control | None:
        """Return the group of all ranks after `enter` has returned True; None if they are apart."""
        if self.meetings.apart:
            return None
        return Control(self._store, self._rank, self._world_size, self.meetings, timeout_s=self._timeout_s)


def among_others() -> bool:
    """Whether torchrun started other ranks, too."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "MASTER_ADDR" in os.environ


def connect(name: str, *, timeout_s: float, join_s: float = JOIN_S) -> Control | None:
    """Join all ranks that torchrun started; None for a single rank. Raises `ControlError` if one does not arrive.

    Ranks meet in their first call of a name, then in their second, and so on.
    """
    if not among_others():
        return None
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = _store(f"{name}/{_CONNECTED[name]}", rank, world_size, join_s)
    _CONNECTED[name] += 1
    _meet_in_store(store, rank, world_size, join_s)
    meetings = Meetings(store, rank, world_size, least_s=timeout_s, most_s=timeout_s)
    return Control(store, rank, world_size, meetings, timeout_s=timeout_s)


def _store(name: str, rank: int, world_size: int, timeout_s: float) -> Any:
    """Return our part of the store of torchrun's agent."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and rank == 0
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    c10d: Any = dist  # its stubs lack these classes or half of their methods
    options = {"timeout": timedelta(seconds=timeout_s), "wait_for_workers": False, "multi_tenant": True}
    return c10d.PrefixStore(f"rankscope/{name}/{attempt}", c10d.TCPStore(host, port, world_size, serves, **options))


def _meet_in_store(store: Any, rank: int, world_size: int, join_s: float) -> None:
    """Wait for all ranks with our own timeout, because gloo's names addresses instead of ranks.

    If one rank has given up, nobody goes on, because gloo would wait for it.
    """
    store.set(f"here/{rank}", "1")
    for other in range(world_size):
        try:
            store.wait([f"here/{other}"])
        except dist.DistError:
            store.set("given up", "1")
            raise ControlError(f"rank {other} did not arrive within {join_s:g} s") from None
    if store.check(["given up"]):
        raise ControlError(f"a rank gave up after {join_s:g} s")
