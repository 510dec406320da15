"""The groups of settings of a run: one immutable struct each, every key with its default and its allowed values."""

from typing import Annotated, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
ScriptArgument = str | int | float | bool | None  # as Hydra reads an item of a list; quotes keep a text as it is


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group of settings; an unknown key in it is an error."""


class ModelConfig(Section, frozen=True, kw_only=True):
    """A reference model by name and named size; see `rankscope.models` for what each size holds."""

    name: Literal["gpt", "resnet", "mlp"] = "gpt"
    size: Literal["tiny", "small", "medium", "large", "xl"] = "tiny"
    activation_checkpointing: bool = False
    channels_last: bool = False  # convolutional models only


class DataConfig(Section, frozen=True, kw_only=True):
    """Where batches come from and how the loader hands them over (`num_workers` is a top-level key)."""

    name: Literal["synthetic", "tokens", "images"] = "synthetic"
    root: str = "data"  # data sets on disk are made here once, and reused
    samples: Count = 16384  # of an epoch, over all ranks; when they are used up the loader starts again
    prefetch_factor: Count = 2  # batches a worker prepares ahead; needs workers
    persistent_workers: bool = False
    pin_memory: bool = True  # ignored without a GPU
    non_blocking: bool = True


class DdpConfig(Section, frozen=True, kw_only=True):
    """DistributedDataParallel and its levers; `enabled: false` is the plain single-process baseline."""

    enabled: bool = True
    bucket_cap_mb: Positive = 25.0
    static_graph: bool = False
    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = True
    broadcast_buffers: bool = True
    no_sync: bool = True  # with gradient accumulation, gradients meet in the last micro-step only
    comm_hook: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    powersgd_rank: Count = 4


class PrecisionConfig(Section, frozen=True, kw_only=True):
    """Arithmetic: fp32 (TF32 off), tf32, bf16 autocast, or fp16 autocast with a GradScaler."""

    name: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"


class OptimizerConfig(Section, frozen=True, kw_only=True):
    """The optimizer and which of torch's implementations runs it."""

    name: Literal["adamw", "sgd"] = "adamw"
    impl: Literal["foreach", "fused", "forloop"] = "foreach"
    lr: Positive = 3e-4
    weight_decay: NotNegative = 0.0


class ProfileConfig(Section, frozen=True, kw_only=True):
    """torch.profiler: its schedule and what it records beside times."""

    wait: Natural = 9  # on a GPU DDP times its first ten steps itself, and waits for the device in each
    warmup: Natural = 2
    active: Count = 4
    repeat: Count = 1
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    device_only: bool = False  # device activities alone: disturbs a host-bound job less; needs a GPU
    light_above: Positive | None = 1.15  # torch step / plain step above which a light pass is added; null: never
    modules: list[str] = []  # submodules as ranges, by name: [blocks.*,head]

    @property
    def steps(self) -> int:
        """Steps that the whole schedule needs."""
        return (self.wait + self.warmup + self.active) * self.repeat


class NsysConfig(Section, frozen=True, kw_only=True):
    """Nsight Systems: what it traces, on which ranks, and further arguments of `nsys profile`.

    It records the active steps of the first cycle of `profile`.
    """

    program: str | None = None  # null: on PATH, else where the CUDA toolkit or Nsight Compute put it
    traces: list[str] = msgspec.field(default_factory=lambda: ["cuda", "nvtx"])  # cuda only counts on a GPU
    ranks: Literal["all", "one_per_host"] | list[Natural] = "all"
    extra_args: list[str] = []


class LaunchConfig(Section, frozen=True, kw_only=True):
    """How torchrun is started and how long a pass may take."""

    nnodes: Count = 1
    rdzv_endpoint: str = "auto"  # host:port; auto: the first node, on a port that is free there
    timeout_s: Positive = 1800.0  # for a whole pass
    stall_timeout_s: Positive = 300.0  # longest time without progress of any rank
    grace_s: Positive = 15.0  # between asking the ranks to stop and killing them
    local_dir: str | None = None  # where ranks write first; null: the run folder, on several nodes the temporary folder
    join_timeout_s: Positive = 300.0  # several nodes: how long the first waits for the others
    node_timeout_s: Positive = 60.0  # several nodes: how long one waits for another after its own ranks have ended
    turn: str | None = None  # a file; runs of this host that name the same one measure one after another
    reserve_s: Natural = 60  # under SLURM: how long before the end of the job a pass is stopped, to save what it has
    min_free_mb: Natural = 512  # free space that the run folder's disk must have before anything starts


class SlurmConfig(Section, frozen=True, kw_only=True):
    """How a run is submitted to SLURM (`hydra.launcher.*`), by submitit's names; nodes are those of `launch.nnodes`."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    timeout_min: Count = 60  # the job's time limit
    cpus_per_task: Count | None = None  # of a node; its ranks share them
    gpus_per_node: Natural | None = None  # null: with device=cuda one a rank, else none are asked for
    mem_gb: Positive | None = None
    exclusive: bool = True  # a neighbour on a node disturbs what is measured
    array_parallelism: Count = 1  # points of a sweep at the same time; they share network and file system
    setup: list[str] = []  # lines of shell before the run, such as "module load cuda"
    additional_parameters: dict[str, str | int | bool] = {}  # further options of sbatch, by name


FaultName = Literal[
    "none", "compute", "host", "data", "storage", "decode", "garbage", "copy", "item", "cpu_copy", "synchronize",
    "allocator", "lengths", "raise", "exit", "kill", "hang", "oom", "no_trace",
]  # fmt: skip
GPU_FAULTS = ("copy", "synchronize", "allocator")  # they do nothing on a CPU


class FaultConfig(Section, frozen=True, kw_only=True):
    """A fault planted on purpose, so that findings can be proved; docs/scenarios.md says what each kind does.

    `raise`, `exit`, `kill`, `hang` and `oom` end the rank at `step`; the others act in every step from it on.
    """

    fault: FaultName = "none"
    rank: Natural | Literal["all", "rotating"] = 0  # rotating: step N acts on rank N modulo world_size
    step: Natural = 0  # the first
    steps: Natural = 0  # how many; 0: to the end
    ms: NotNegative = 0.0  # a step; storage and decode: a sample
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5  # lengths: what is left of a sequence


class ScenarioConfig(FaultConfig, frozen=True, kw_only=True):
    """What is planted in a run, and what must be found. A scenario may also be settings alone, as a tiny batch is."""

    planted: str = "nothing"
    gpu: bool = False  # it shows on a GPU only
    finds: list[str] = []  # findings, one of which must be reported
    finds_rank: Natural | None = None
    fix: list[str] = []  # overrides that take the fault away
    more: list[FaultConfig] = []  # further faults at the same time

    @property
    def planted_faults(self) -> list[FaultConfig]:
        """Every fault of the scenario."""
        return [item for item in (self, *self.more) if item.fault != "none"]
