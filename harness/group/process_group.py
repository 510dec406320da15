"""Identifies this rank and joins the others: torchrun's environment in, `RankContext` and process groups out."""

import os
import signal
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rankscope.conf.host import boot_id, host_name
from rankscope.conf.messages import ConfigError
from rankscope.conf.parent_death import signal_at_parent_death
from rankscope.conf.schema import RunConfig
from rankscope.harness.group.control import Control, ControlError, connect


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """One rank: its place among the others, its device, and its host."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    device: torch.device
    backend: str | None  # null without a process group
    host: str
    boot_id: str | None  # ranks with the same boot id share a clock; null if the kernel has none
    control: Control | None = None  # all ranks, for barriers and clocks; null for a single rank

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        """Wait until the device has completed all launched work."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def barrier(self, purpose: str) -> bool:
        """Wait for all ranks at a meeting for `purpose`; returns whether all are there, as a single rank always is."""
        if self.control is not None:
            return self.control.barrier(purpose)
        return self.world_size == 1

    @property
    def apart(self) -> bool:
        """Whether the ranks do not step alike, so that they no longer meet."""
        return self.world_size > 1 and (self.control is None or self.control.meetings.apart)

    def largest(self, value: float) -> float:
        """Return the largest `value` of all ranks; of this rank alone if they are apart."""
        if self.control is None or not self.control.barrier("compare"):
            return value
        gathered, work = self.control.gather_later(torch.tensor([value], dtype=torch.float64))
        work.wait()
        return float(torch.cat(gathered).max())


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies, so that no rank or loader worker is left behind."""
    parent = os.getppid()
    signal_at_parent_death(signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the request
        os.kill(os.getpid(), signal.SIGKILL)


def join(config: RunConfig) -> RankContext:
    """Choose the device, set the threads, and join the other ranks unless DDP is off.

    Raises `ConfigError` if this host has no device for this rank.
    """
    local_rank, local_world_size = _environment("LOCAL_RANK", 0), _environment("LOCAL_WORLD_SIZE", 1)
    device = _device(config, local_rank)
    backend = config.backend
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    if backend == "nccl" and device.type != "cuda":
        raise ConfigError("backend=nccl: this host has no GPU that torch can use; use backend=auto or gloo")
    if config.ddp.comm_hook == "bf16" and backend != "nccl":
        raise ConfigError(
            "ddp.comm_hook=bf16: torch offers this hook with NCCL only, and this host has no GPU; use fp16"
        )
    torch.set_num_threads(config.threads or max(1, len(os.sched_getaffinity(0)) // local_world_size))
    control = None
    if config.ddp.enabled:
        # The launcher's timeouts end a hung pass. The group's must not end it while a rank writes a large trace.
        timeout = timedelta(seconds=config.launch.timeout_s)
        dist.init_process_group(backend, timeout=timeout, device_id=device if backend == "nccl" else None)
        control = connect("control", timeout_s=config.launch.timeout_s, join_s=config.launch.timeout_s)
    return context_of(device, backend if config.ddp.enabled else None, control)


def context_of(device: torch.device, backend: str | None, control: Control | None) -> RankContext:
    """Return this rank according to torchrun's environment, or a single rank without torchrun."""
    return RankContext(
        rank=_environment("RANK", 0),
        local_rank=_environment("LOCAL_RANK", 0),
        world_size=_environment("WORLD_SIZE", 1),
        local_world_size=_environment("LOCAL_WORLD_SIZE", 1),
        device=device,
        backend=backend,
        host=host_name(),
        boot_id=boot_id(),
        control=control,
    )


def of_script(timeout_s: float, name: str) -> tuple[RankContext, str | None]:
    """Return the rank of a script that has chosen its device and groups, and a problem to report, or None."""
    try:
        return in_script(connect(name, timeout_s=timeout_s)), None
    except ControlError as error:
        return in_script(None), f"{error} of the first: ranks do not begin together"


def in_script(control: Control | None) -> RankContext:
    """Return the rank of a script. Does not initialise a device that the script has not used yet."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else torch.device("cpu")
    backend = str(dist.get_backend()) if dist.is_available() and dist.is_initialized() else None
    return context_of(device, backend, control)


_kept: list[Any] = []


def leave_groups() -> None:
    """Destroy the groups of a script that did not come to it, because it was ended."""
    if dist.is_available() and dist.is_initialized():
        _kept.append(dist.group.WORLD)
        dist.destroy_process_group()


def leave(context: RankContext) -> None:
    """Destroy the process groups. Only after success, because after a failure the other ranks may never answer.

    The group objects are kept until the process ends. Gloo's destructor holds the interpreter's lock while it waits for
    a thread that may need the same lock to release the last collective: one rank in a hundred hung in this way.
    """
    if context.backend is not None:
        context.barrier("leave")
        _kept.extend((context.control, dist.group.WORLD))
        dist.destroy_process_group()


def _environment(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


def _device(config: RunConfig, local_rank: int) -> torch.device:
    available = torch.cuda.is_available()
    if config.device == "cpu" or (config.device == "auto" and not available):
        if config.precision.name == "fp16":
            raise ConfigError("precision=fp16: there is no GPU on this host; use precision=bf16 or fp32")
        return torch.device("cpu")
    if not available:
        raise ConfigError(
            "device=cuda: torch finds no GPU on this host; use device=cpu or install a CUDA build of torch"
        )
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ConfigError(f"local rank {local_rank} has no GPU of its own: this host has {count}; reduce world_size")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)  # before any other use of CUDA, so that this rank has no context on GPU 0
    return device
