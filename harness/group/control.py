"""A group of all ranks beside the job's own: for barriers, clocks and small exchanges, over gloo on the hosts.

It stands on the store of torchrun's agent, not on the default process group: a script may make and destroy groups of
its own as it likes, and no collective of ours is ever counted among them. It launches no kernel.
"""

import os
from collections import deque
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

JOIN_S = 120.0  # for all ranks to come here for the first time
_TAG = 7
# The last exchanges. A thread of gloo that frees a tensor of Python's takes the interpreter's lock for it; when the
# interpreter has ended meanwhile, that ends the process with SIGABRT. So the last reference is never gloo's.
_KEPT: deque[Any] = deque(maxlen=64)


class ControlError(RuntimeError):
    """Not all ranks came."""


class Control:
    """All ranks of the job. Every method but `send` and `receive` must be called by all ranks, in the same order."""

    def __init__(self, name: str, rank: int, world_size: int, *, timeout_s: float, join_s: float = JOIN_S) -> None:
        self.rank = rank
        self.world_size = world_size
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and rank == 0
        joining = timedelta(seconds=join_s)
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        c10d: Any = dist  # whose stubs leave these classes out, or half of their methods
        options = {"timeout": joining, "wait_for_workers": False, "multi_tenant": True}
        base = c10d.TCPStore(host, port, world_size, serves, **options)
        self._store = c10d.PrefixStore(f"rankscope/{name}/{attempt}", base)
        self._meet_in_store(join_s)
        self._group = c10d.ProcessGroupGloo(self._store, rank, world_size, timedelta(seconds=timeout_s))

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self._group.barrier().wait()

    def send(self, message: Tensor, rank: int) -> None:
        """Send `message` to one rank."""
        self._group.send([message], rank, _TAG).wait()

    def receive(self, message: Tensor, rank: int) -> None:
        """Fill `message` with what one rank sends."""
        self._group.recv([message], rank, _TAG).wait()

    def share(self, key: str, value: str | None) -> str:
        """Return what rank 0 says under `key`; only its own `value` counts."""
        if self.rank == 0:
            self._store.set(key, value or "")
        return bytes(self._store.get(key)).decode()

    def gather_later(self, values: Tensor) -> tuple[list[Tensor], dist.Work]:
        """Begin to give `values` of every rank to every rank; returns where they will be, and what says when."""
        gathered = [torch.empty_like(values) for _ in range(self.world_size)]
        work = self._group.allgather([gathered], [values])
        _KEPT.append((values, gathered))
        return gathered, work

    def _meet_in_store(self, join_s: float) -> None:
        """Wait for all ranks with a limit of our own: gloo's would name addresses, not ranks.

        Where one has given up nobody goes on: gloo would wait for it.
        """
        self._store.set(f"here/{self.rank}", "1")
        for rank in range(self.world_size):
            try:
                self._store.wait([f"here/{rank}"])
            except dist.DistError:
                self._store.set("given up", "1")
                raise ControlError(f"rank {rank} did not come within {join_s:g} s") from None
        if self._store.check(["given up"]):
            raise ControlError(f"a rank has given up after {join_s:g} s")


def connect(name: str, *, timeout_s: float, join_s: float = JOIN_S) -> Control | None:
    """Join all ranks that torchrun started; None for one rank alone. `ControlError` when one does not come."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1 or "MASTER_ADDR" not in os.environ:
        return None
    return Control(name, int(os.environ["RANK"]), world_size, timeout_s=timeout_s, join_s=join_s)
