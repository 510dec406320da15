"""A group of all ranks next to the job's own groups: for barriers, clocks and small exchanges, over gloo on the hosts.

It uses the store of torchrun's agent instead of the default process group. So a script may create and destroy groups
as it likes, and our collectives are never counted among its own. It launches no kernel.
"""

import os
from collections import deque
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

JOIN_S = 120.0  # timeout for all ranks to arrive for the first time
_TAG = 7
# The last exchanges. A gloo thread that frees a Python tensor takes the interpreter's lock. If the interpreter has
# ended by then, the process ends with SIGABRT. So gloo must never hold the last reference.
_KEPT: deque[Any] = deque(maxlen=64)


class ControlError(RuntimeError):
    """Not all ranks arrived in time."""


class Control:
    """All ranks of the job. All ranks must call the methods other than `send` and `receive`, in the same order."""

    def __init__(self, name: str, rank: int, world_size: int, *, timeout_s: float, join_s: float = JOIN_S) -> None:
        self.rank = rank
        self.world_size = world_size
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and rank == 0
        joining = timedelta(seconds=join_s)
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        c10d: Any = dist  # its stubs lack these classes or half of their methods
        options = {"timeout": joining, "wait_for_workers": False, "multi_tenant": True}
        base = c10d.TCPStore(host, port, world_size, serves, **options)
        self._store = c10d.PrefixStore(f"rankscope/{name}/{attempt}", base)
        self._meet_in_store(join_s)
        self._group = c10d.ProcessGroupGloo(self._store, rank, world_size, timedelta(seconds=timeout_s))

    def barrier(self) -> None:
        self._group.barrier().wait()

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

    def _meet_in_store(self, join_s: float) -> None:
        """Wait for all ranks with our own timeout, because gloo's names addresses instead of ranks.

        If one rank has given up, nobody goes on, because gloo would wait for it.
        """
        self._store.set(f"here/{self.rank}", "1")
        for rank in range(self.world_size):
            try:
                self._store.wait([f"here/{rank}"])
            except dist.DistError:
                self._store.set("given up", "1")
                raise ControlError(f"rank {rank} did not arrive within {join_s:g} s") from None
        if self._store.check(["given up"]):
            raise ControlError(f"a rank gave up after {join_s:g} s")


def connect(name: str, *, timeout_s: float, join_s: float = JOIN_S) -> Control | None:
    """Join all ranks that torchrun started; None for a single rank. Raises `ControlError` if one does not arrive."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1 or "MASTER_ADDR" not in os.environ:
        return None
    return Control(name, int(os.environ["RANK"]), world_size, timeout_s=timeout_s, join_s=join_s)
