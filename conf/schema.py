"""The configuration of a point: plain data in, one validated, immutable `RunConfig` out.

Every value is checked before anything starts. An error names the key, the value and what is allowed.
Hydra composes the plain data in `launch`; ranks and analysis read the resolved `config.yaml` and know no Hydra.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from rankscope.conf.files import write_text
from rankscope.conf.messages import describe

Count = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]

PassName = Literal["plain", "torch", "nsys"]


class ConfigError(ValueError):
    """A configuration that cannot run; the message names the key, the value and what is allowed."""


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class ModelConfig(_Section, frozen=True, kw_only=True):
    """A reference model by name and named size; see `rankscope.models` for what each size holds."""

    name: Literal["gpt", "resnet", "mlp"] = "gpt"
    size: Literal["tiny", "small", "medium", "large", "xl"] = "tiny"
    activation_checkpointing: bool = False
    channels_last: bool = False  # convolutional models only


class DataConfig(_Section, frozen=True, kw_only=True):
    """Where batches come from and how the loader hands them over (`num_workers` is a top-level key)."""

    name: Literal["synthetic", "tokens", "images"] = "synthetic"
    root: str = "data"  # data sets on disk are made here once, and reused
    samples: Count = 16384  # of an epoch, over all ranks; when they are used up the loader starts again
    prefetch_factor: Count = 2  # batches a worker prepares ahead; needs workers
    persistent_workers: bool = False
    pin_memory: bool = True  # ignored without a GPU
    non_blocking: bool = True


class DdpConfig(_Section, frozen=True, kw_only=True):
    """DistributedDataParallel and its levers; `enabled: false` is the plain single-process baseline."""

    enabled: bool = True
    bucket_cap_mb: Positive = 25.0
    static_graph: bool = False
    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = True
    broadcast_buffers: bool = True
    comm_hook: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    powersgd_rank: Count = 4


class PrecisionConfig(_Section, frozen=True, kw_only=True):
    """Arithmetic: fp32 (TF32 off), tf32, bf16 autocast, or fp16 autocast with a GradScaler."""

    name: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"


class OptimizerConfig(_Section, frozen=True, kw_only=True):
    """The optimizer and which of torch's implementations runs it."""

    name: Literal["adamw", "sgd"] = "adamw"
    impl: Literal["foreach", "fused", "forloop"] = "foreach"
    lr: Positive = 3e-4
    weight_decay: NotNegative = 0.0


class ProfileConfig(_Section, frozen=True, kw_only=True):
    """torch.profiler: its schedule and what it records beside times."""

    wait: Natural = 2
    warmup: Natural = 2
    active: Count = 4
    repeat: Count = 1
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False

    @property
    def steps(self) -> int:
        """Steps that the whole schedule needs."""
        return (self.wait + self.warmup + self.active) * self.repeat


class NsysConfig(_Section, frozen=True, kw_only=True):
    """Nsight Systems: what it traces, on which ranks, and further arguments of `nsys profile`.

    It records the active steps of the first cycle of `profile`.
    """

    program: str | None = None  # null: on PATH, else where the CUDA toolkit or Nsight Compute put it
    traces: list[str] = msgspec.field(default_factory=lambda: ["cuda", "nvtx"])  # cuda only counts on a GPU
    ranks: Literal["all", "one_per_host"] | list[Natural] = "all"
    extra_args: list[str] = []


class LaunchConfig(_Section, frozen=True, kw_only=True):
    """How torchrun is started and how long a pass may take."""

    nnodes: Count = 1
    rdzv_endpoint: str = "localhost:0"  # port 0: a free one each time
    timeout_s: Positive = 1800.0  # for a whole pass
    stall_timeout_s: Positive = 300.0  # longest time without progress of any rank
    grace_s: Positive = 15.0  # between asking the ranks to stop and killing them
    min_free_mb: Natural = 512  # free space that the run folder's disk must have before anything starts


class ScenarioConfig(_Section, frozen=True, kw_only=True):
    """A fault planted on purpose: on one rank, from one step on, so that findings can be proved.

    `raise`, `exit`, `kill`, `hang` and `oom` end the rank at `step`; the others slow it by `ms` in every step.
    """

    fault: Literal["none", "compute", "host", "data", "raise", "exit", "kill", "hang", "oom", "no_trace"] = "none"
    rank: Natural = 0
    step: Natural = 0
    ms: NotNegative = 0.0


class RunConfig(_Section, frozen=True, kw_only=True):
    """One point: what is trained, on how many ranks, and in which passes it is measured."""

    name: str = "run"
    runs_dir: str = "runs"
    run_dir: str | None = None  # null: a new folder under runs_dir
    passes: list[PassName] = msgspec.field(default_factory=lambda: ["plain", "torch"])
    world_size: Count = 1
    batch_size: Count | None = 8  # per rank and micro-step; null when global_batch_size is given
    global_batch_size: Count | None = None  # over all ranks and micro-steps of an optimizer step
    repeats: Count = 1  # of the plain pass, each its own processes; a sweep takes 3
    gradient_accumulation: Count = 1
    steps: Count = 20  # measured steps of the plain pass
    warmup_steps: Natural = 5  # before them
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"] = "off"
    num_workers: Natural = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    threads: Natural = 0  # CPU threads of a rank; 0: cores of the node / ranks of the node
    seed: int = 0
    log_every: Count = 10  # steps between two readings of the loss
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    ddp: DdpConfig = DdpConfig()
    precision: PrecisionConfig = PrecisionConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    profile: ProfileConfig = ProfileConfig()
    nsys: NsysConfig = NsysConfig()
    launch: LaunchConfig = LaunchConfig()
    scenario: ScenarioConfig = ScenarioConfig()

    @property
    def rank_batch_size(self) -> int:
        """Samples of one rank in one micro-step."""
        if self.global_batch_size is not None:
            return self.global_batch_size // (self.world_size * self.gradient_accumulation)
        assert self.batch_size is not None  # _check_batch has seen to it
        return self.batch_size

    @property
    def samples_per_step(self) -> int:
        """Samples of all ranks in one optimizer step."""
        return self.rank_batch_size * self.world_size * self.gradient_accumulation


def parse_config(data: Mapping[str, Any]) -> RunConfig:
    """Turn plain data into a `RunConfig`, or raise `ConfigError` with one line that tells what to change."""
    try:
        config = msgspec.convert(data, RunConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(describe(error, data, RunConfig)) from None
    for check in (_check_batch, _check_world, _check_names, _check_data, _check_nsys):
        check(config)
    return config


def load_config(path: Path) -> RunConfig:
    """Read a resolved `config.yaml`."""
    try:
        return parse_config(yaml.safe_load(path.read_text()))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (OSError, yaml.YAMLError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read as a rankscope config ({error})") from None


def save_config(config: RunConfig, path: Path) -> None:
    """Write `config` so that `load_config` gives it back."""
    write_text(path, yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False))


def _check_batch(config: RunConfig) -> None:
    if (config.batch_size is None) == (config.global_batch_size is None):
        raise ConfigError(
            f"batch_size={config.batch_size} and global_batch_size={config.global_batch_size}: "
            "set exactly one of them and the other to null"
        )
    whole, parts = config.global_batch_size, config.world_size * config.gradient_accumulation
    if whole is not None and whole % parts:
        raise ConfigError(
            f"global_batch_size={whole}: must be a multiple of world_size x gradient_accumulation = {parts}"
        )


def _check_world(config: RunConfig) -> None:
    if not config.ddp.enabled and config.world_size > 1:
        raise ConfigError(
            f"ddp.enabled=false with world_size={config.world_size}: "
            "the baseline without DDP is one process; use world_size=1"
        )
    if config.world_size % config.launch.nnodes:
        raise ConfigError(f"world_size={config.world_size}: must be a multiple of launch.nnodes={config.launch.nnodes}")
    if config.backend == "nccl" and config.device == "cpu":
        raise ConfigError("backend=nccl with device=cpu: NCCL moves GPU memory only; use backend=gloo")
    if config.ddp.comm_hook == "bf16" and (config.device == "cpu" or config.backend == "gloo"):
        raise ConfigError("ddp.comm_hook=bf16: torch offers this hook with NCCL only; use fp16, or device=cuda")
    if config.precision.name == "fp16" and config.device == "cpu":
        raise ConfigError("precision=fp16 with device=cpu: fp16 needs a GPU; use precision=bf16 or fp32")
    if config.scenario.fault != "none" and config.scenario.rank >= config.world_size:
        raise ConfigError(
            f"scenario.rank={config.scenario.rank}: allowed are 0 to {config.world_size - 1} "
            f"(world_size={config.world_size})"
        )


def _check_nsys(config: RunConfig) -> None:
    nsys = config.nsys
    beyond = [rank for rank in nsys.ranks if rank >= config.world_size] if isinstance(nsys.ranks, list) else []
    if beyond or nsys.ranks == []:
        raise ConfigError(
            f"nsys.ranks={nsys.ranks}: allowed are all, one_per_host, or ranks from 0 to {config.world_size - 1}"
        )
    if "nvtx" not in nsys.traces:
        raise ConfigError(f"nsys.traces={nsys.traces}: must hold nvtx, which names the steps")


def _check_names(config: RunConfig) -> None:
    if not config.name or Path(config.name).name != config.name or config.name.startswith("."):
        raise ConfigError(f"name={config.name!r}: must be a plain folder name, without '/' or a leading dot")
    if not config.passes or len(set(config.passes)) != len(config.passes):
        raise ConfigError(f"passes={config.passes}: name at least one pass, each once")


def _check_data(config: RunConfig) -> None:
    kinds = {"gpt": ("synthetic", "tokens"), "resnet": ("synthetic", "images"), "mlp": ("synthetic",)}
    allowed = kinds[config.model.name]
    if config.data.name not in allowed:
        raise ConfigError(f"data={config.data.name}: model={config.model.name} takes data={' or '.join(allowed)}")
    if config.model.channels_last and config.model.name != "resnet":
        raise ConfigError(f"model.channels_last=true: only for model=resnet, not {config.model.name}")
    batch = config.rank_batch_size * config.world_size
    if config.data.samples < batch:
        raise ConfigError(
            f"data.samples={config.data.samples}: fewer than one batch of all ranks ({batch} samples); raise it"
        )
    if config.data.persistent_workers and config.num_workers == 0:
        raise ConfigError("data.persistent_workers=true with num_workers=0: there is no worker to keep")
