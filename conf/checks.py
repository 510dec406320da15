"""Checks of settings against each other: raises `ConfigError` for a `RunConfig` that cannot run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.conf.messages import ConfigError
from rankscope.conf.sections import GPU_FAULTS

if TYPE_CHECKING:
    from rankscope.conf.schema import RunConfig

INFERENCE_WARMUP = 50  # minimum steps before latency is measured


def check(config: RunConfig) -> None:
    """Raise `ConfigError` with one line that says what to change."""
    for one in (
        _check_script,
        _check_batch,
        _check_mode,
        _check_world,
        _check_parallel,
        _check_names,
        _check_data,
        _check_nsys,
        _check_scenario,
        _check_profile,
    ):
        one(config)


# Keys of the reference model. A script decides these itself.
_OF_THE_MODEL = (
    "mode", "batch_size", "global_batch_size", "gradient_accumulation", "compile", "num_workers", "backend", "seed",
    "log_every", "model", "data", "ddp", "parallel", "precision", "optimizer", "scenario",
)  # fmt: skip


_OF_A_SCRIPT = ("script_args", "steps_from", "run_on")


def refuse_ignored(config: RunConfig, given: Iterable[str]) -> None:
    """Raise `ConfigError` for a key that was given and that this kind of run does not read, whatever its value."""
    for key in given:
        section = key.partition(".")[0]
        if config.script is None and section in _OF_A_SCRIPT:
            raise ConfigError(f"{key}={getattr(config, key)}: only applies to your own script; set script=FILE")
        if config.script is not None and section in _OF_THE_MODEL:
            raise ConfigError(
                f"{key}: only applies to the reference model; {config.script} takes its own settings, after --"
            )


def _check_script(config: RunConfig) -> None:
    defaults, fields = type(config)(), (*_OF_THE_MODEL, *_OF_A_SCRIPT)
    refuse_ignored(config, (key for key in fields if getattr(config, key) != getattr(defaults, key)))
    if config.script is None:
        return
    if config.profile.modules:
        raise ConfigError("profile.modules: needs the reference model; in a script open ranges with record_function")


def _check_batch(config: RunConfig) -> None:
    if (config.batch_size is None) == (config.global_batch_size is None):
        raise ConfigError(
            f"batch_size={config.batch_size} and global_batch_size={config.global_batch_size}: "
            "set exactly one of them, and the other to null"
        )
    whole, parts = config.global_batch_size, config.replicas * config.gradient_accumulation
    if whole is not None and whole % parts:
        raise ConfigError(
            f"global_batch_size={whole}: must be a multiple of replicas x gradient_accumulation = {parts}"
        )


def _check_mode(config: RunConfig) -> None:
    mode = config.mode
    if mode != "train" and config.gradient_accumulation > 1:
        raise ConfigError(f"gradient_accumulation={config.gradient_accumulation}: mode={mode} has no gradients; use 1")
    if mode != "inference":
        return
    if config.world_size > 1:
        raise ConfigError(f"world_size={config.world_size}: mode=inference measures one rank; use world_size=1")
    if config.ddp.enabled:
        raise ConfigError("ddp.enabled=true: mode=inference serves one replica without DDP; use ddp.enabled=false")
    if config.warmup_steps < INFERENCE_WARMUP:
        raise ConfigError(
            f"warmup_steps={config.warmup_steps}: mode=inference needs at least {INFERENCE_WARMUP}, "
            "so that caches, clocks and autotuning have settled"
        )


def _check_world(config: RunConfig) -> None:
    if not config.ddp.enabled and config.world_size > 1:
        raise ConfigError(
            f"ddp.enabled=false with world_size={config.world_size}: "
            "the baseline without DDP is one process; use world_size=1"
        )
    if config.world_size % config.launch.nnodes:
        raise ConfigError(f"world_size={config.world_size}: must be a multiple of launch.nnodes={config.launch.nnodes}")
    if config.launch.turn is not None and config.launch.nnodes > 1:
        raise ConfigError(
            f"launch.turn={config.launch.turn} with launch.nnodes={config.launch.nnodes}: "
            "a turn only orders the runs of one host; use launch.turn=null"
        )
    if config.backend == "nccl" and config.device == "cpu":
        raise ConfigError("backend=nccl with device=cpu: NCCL only transfers GPU memory; use backend=gloo")
    if config.ddp.comm_hook == "bf16" and (config.device == "cpu" or config.backend == "gloo"):
        raise ConfigError("ddp.comm_hook=bf16: torch offers this hook only with NCCL; use fp16, or device=cuda")
    if config.precision.name == "fp16" and config.device == "cpu":
        raise ConfigError("precision=fp16 with device=cpu: fp16 needs a GPU; use precision=bf16 or fp32")


def _check_parallel(config: RunConfig) -> None:
    parallel, name = config.parallel, config.parallel.name
    if name == "ddp" or not config.ddp.enabled:
        return
    told = f"parallel={name}"
    if config.model.name != "gpt" or config.mode != "train":
        raise ConfigError(f"{told}: only for model=gpt and mode=train, not {config.model.name} and {config.mode}")
    if config.compile != "off" or config.precision.name == "fp16" or config.ddp.comm_hook != "none":
        raise ConfigError(f"{told}: needs compile=off, ddp.comm_hook=none, and a precision other than fp16")
    if name == "hsdp" and (config.world_size % parallel.shards or config.world_size == parallel.shards):
        raise ConfigError(
            f"{told} with parallel.shards={parallel.shards}: world_size={config.world_size} must be a multiple of it, "
            "at least twice as large; use parallel=fsdp to shard over all ranks"
        )
    if name == "pp" and config.gradient_accumulation > 1:
        raise ConfigError(f"{told}: its micro-batches accumulate gradients already; use gradient_accumulation=1")
    if name == "pp" and config.rank_batch_size % parallel.micro_batches:
        raise ConfigError(
            f"{told}: a batch of {config.rank_batch_size} cannot be cut into {parallel.micro_batches} micro-batches; "
            "change batch_size or parallel.micro_batches"
        )


def _check_nsys(config: RunConfig) -> None:
    nsys = config.nsys
    beyond = [rank for rank in nsys.ranks if rank >= config.world_size] if isinstance(nsys.ranks, list) else []
    if beyond or nsys.ranks == []:
        raise ConfigError(
            f"nsys.ranks={nsys.ranks}: allowed are all, one_per_host, or ranks from 0 to {config.world_size - 1}"
        )
    if "nvtx" not in nsys.traces:
        raise ConfigError(f"nsys.traces={nsys.traces}: must include nvtx, which marks the steps")


def _check_names(config: RunConfig) -> None:
    if not config.name or Path(config.name).name != config.name or config.name.startswith("."):
        raise ConfigError(f"name={config.name!r}: must be a plain folder name, without '/' or a leading dot")
    if not config.passes or len(set(config.passes)) != len(config.passes):
        raise ConfigError(f"passes={config.passes}: name at least one pass, and each only once")


# Data on disk that a model can read besides `synthetic`.
_ON_DISK = {"gpt": ("tokens",), "resnet": ("images",)}


def _check_data(config: RunConfig) -> None:
    if config.script is not None:
        return
    allowed = ("synthetic", *_ON_DISK.get(config.model.name, ()))
    if config.data.name not in allowed:
        raise ConfigError(f"data={config.data.name}: model={config.model.name} needs data={' or '.join(allowed)}")
    if config.model.channels_last and config.model.name != "resnet":
        raise ConfigError(f"model.channels_last=true: only for model=resnet, not {config.model.name}")
    batch = config.rank_batch_size * config.replicas
    if config.data.samples < batch:
        raise ConfigError(
            f"data.samples={config.data.samples}: fewer than one batch of all ranks ({batch} samples); raise it"
        )
    if config.data.persistent_workers and config.num_workers == 0:
        raise ConfigError(
            "data.persistent_workers=true with num_workers=0: there are no workers to keep; use num_workers=1 or more"
        )


def _check_scenario(config: RunConfig) -> None:
    for fault in config.scenario.planted_faults:
        if isinstance(fault.rank, int) and fault.rank >= config.world_size:
            raise ConfigError(
                f"scenario.rank={fault.rank}: allowed are 0 to {config.world_size - 1} "
                f"(world_size={config.world_size}), all and rotating"
            )
        if fault.fault in GPU_FAULTS and config.device == "cpu":
            raise ConfigError(f"scenario.fault={fault.fault} with device=cpu: this fault needs a GPU")


def _check_profile(config: RunConfig) -> None:
    profile = config.profile
    if "light" in config.passes and config.device == "cpu":
        raise ConfigError("passes=[light] with device=cpu: a CPU has no device activities; use passes=[plain,torch]")
    if profile.device_only and config.device == "cpu":
        raise ConfigError(
            "profile.device_only=true with device=cpu: a CPU has no device activities; use profile=default"
        )
    of_operators = ("record_shapes", "profile_memory", "with_stack", "with_flops")
    if profile.device_only and any(getattr(profile, name) for name in of_operators):
        raise ConfigError(f"profile.device_only=true: records no operators, so set {', '.join(of_operators)} to false")
    if profile.modules and config.compile != "off":
        raise ConfigError(
            f"profile.modules with compile={config.compile}: compiled code does not run hooks; use compile=off"
        )
