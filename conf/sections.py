"""The groups of settings of a run: one immutable struct per group, with each key's default and allowed values."""

from typing import Annotated, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]
RankCount = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]  # no job has more ranks
Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
ScriptArgument = str | int | float | bool | None  # as Hydra reads a list item; quotes keep a text unchanged


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group of settings; an unknown key is an error."""


ModelName = Literal["gpt", "resnet", "mlp"]


class ModelConfig(Section, frozen=True, kw_only=True):
    """A reference model by name and named size; `rankscope.models` defines the sizes, the launcher chooses for auto."""

    name: ModelName = "gpt"
    size: Literal["auto", "tiny", "small", "medium", "large", "xl"] = "auto"  # auto: tiny on a CPU; fills a GPU
    activation_checkpointing: bool = False
    channels_last: bool = False  # convolutional models only


class DataConfig(Section, frozen=True, kw_only=True):
    """The source of batches, and how the loader delivers them (`num_workers` is a top-level key)."""

    name: Literal["synthetic", "tokens", "images"] = "synthetic"
    root: str = "data"  # data sets on disk are created here once and reused
    samples: Count = 16384  # per epoch, over all ranks; after the last one the loader starts again
    prefetch_factor: Count = 2  # batches a worker prepares ahead; needs workers
    persistent_workers: bool = False
    pin_memory: bool = True  # ignored without a GPU
    non_blocking: bool = True


class DdpConfig(Section, frozen=True, kw_only=True):
    """DistributedDataParallel and its settings; `enabled: false` is the plain single-process baseline."""

    enabled: bool = True
    bucket_cap_mb: Positive = 25.0
    static_graph: bool = False
    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = True
    broadcast_buffers: bool = True
    no_sync: bool = True  # with gradient accumulation, gradients are reduced only in the last micro-step
    comm_hook: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    powersgd_rank: Count = 4


class ParallelConfig(Section, frozen=True, kw_only=True):
    """How the gpt model is spread over the ranks: DDP, FSDP2, hybrid FSDP, tensor or pipeline parallelism."""

    name: Literal["ddp", "fsdp", "hsdp", "tp", "pp"] = "ddp"
    reshard_after_forward: bool = True  # fsdp, hsdp: free the parameters after the forward pass, gather them again
    prefetch: Natural = 0  # fsdp, hsdp: layers whose parameters are gathered ahead; 0: as FSDP does by itself
    shards: Count = 2  # hsdp: ranks that share one copy of the parameters
    schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b"  # pp; interleaved: two stages on each rank
    micro_batches: Count = 4  # pp: pieces of a batch that are in the pipeline at a time

    @property
    def one_replica(self) -> bool:
        """Whether all ranks together hold one model and work on the same samples."""
        return self.name in ("tp", "pp")

    @property
    def parts(self) -> int:
        """How many stages of a pipeline a rank has."""
        return 2 if self.schedule == "interleaved" else 1

    @property
    def forwards(self) -> int:
        """How many forward passes a rank does with one batch."""
        return self.micro_batches * self.parts if self.name == "pp" else 1


class PrecisionConfig(Section, frozen=True, kw_only=True):
    """Arithmetic: fp32 (TF32 off), tf32, bf16 autocast, or fp16 autocast with a GradScaler."""

    name: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"


class OptimizerConfig(Section, frozen=True, kw_only=True):
    """The optimizer, and which of torch's implementations runs it."""

    name: Literal["adamw", "sgd"] = "adamw"
    impl: Literal["foreach", "fused", "forloop"] = "foreach"
    lr: Positive = 3e-4
    weight_decay: NotNegative = 0.0


class ProfileConfig(Section, frozen=True, kw_only=True):
    """torch.profiler: its schedule, and what it records in addition to times."""

    wait: Natural = 9  # on a GPU DDP times its own first ten steps and waits for the device in each
    warmup: Natural = 2
    active: Count = 4
    repeat: Count = 1
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    device_only: bool = False  # device activities only: disturbs a host-bound job less; needs a GPU
    light_above: Positive | None = None  # torch step / plain step above which a light pass is added; null: never
    modules: list[str] = []  # submodules as ranges, by name: [blocks.*,head]

    @property
    def steps(self) -> int:
        """Steps that the complete schedule needs."""
        return (self.wait + self.warmup + self.active) * self.repeat


class NsysConfig(Section, frozen=True, kw_only=True):
    """Nsight Systems: what it traces, on which ranks, and further arguments of `nsys profile`.

    It records the active steps of the first cycle of `profile`.
    """

    program: str | None = None  # null: from PATH, otherwise from the CUDA toolkit or Nsight Compute
    traces: list[str] = msgspec.field(default_factory=lambda: ["cuda", "nvtx"])  # cuda has no effect without a GPU
    ranks: Literal["all", "one_per_host"] | list[Natural] = "all"
    extra_args: list[str] = []


class LaunchConfig(Section, frozen=True, kw_only=True):
    """How torchrun is started and how long a pass may take."""

    nnodes: Count = 1
    rdzv_endpoint: str = "auto"  # host:port; auto: the first node, on a port that is free there
    timeout_s: Positive = 1800.0  # for a complete pass
    stall_timeout_s: Positive = 300.0  # without progress of any rank, from the first step of a script on
    grace_s: Positive = 15.0  # between the request to stop and the kill of the ranks
    local_dir: str | None = None  # where ranks write first; null: the run folder, on several nodes the temporary folder
    join_timeout_s: Positive = 300.0  # several nodes: how long the first node waits for the others
    node_timeout_s: Positive = (
        60.0  # several nodes: how long a node waits for the others after its own ranks have ended
    )
    turn: str | None = None  # a file; runs of this host that name the same file measure one after another
    reserve_s: Natural = 60  # under SLURM: a pass stops this long before the job ends, to save its files
    min_free_mb: Natural = 512  # free space that the run folder's disk must have before a run starts


class SlurmConfig(Section, frozen=True, kw_only=True):
    """Submission of a run to SLURM (`hydra.launcher.*`), with submitit's names. `launch.nnodes` sets the nodes."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    timeout_min: Count = 60  # the job's time limit
    cpus_per_task: Count | None = None  # per node; its ranks share them
    gpus_per_node: Natural | None = None  # null: with device=cuda one per rank, otherwise none
    mem_gb: Positive | None = None
    exclusive: bool = True  # a neighbour on the node disturbs the measurement
    array_parallelism: Count = 1  # points of a sweep at the same time; they share network and file system
    setup: list[str] = []  # shell lines before the run, such as "module load cuda"
    additional_parameters: dict[str, str | int | bool] = {}  # further options of sbatch, by name


FaultName = Literal[
    "none", "compute", "host", "data", "storage", "decode", "garbage", "copy", "item", "cpu_copy", "synchronize",
    "allocator", "lengths", "raise", "exit", "kill", "hang", "oom", "no_trace",
]  # fmt: skip
GPU_FAULTS = ("copy", "synchronize", "allocator")  # no effect on a CPU


class FaultConfig(Section, frozen=True, kw_only=True):
    """A fault planted on purpose, so that findings can be tested; docs/scenarios.md describes each kind.

    `raise`, `exit`, `kill`, `hang` and `oom` end the rank at `step`; the others act from that step on.
    """

    fault: FaultName = "none"
    rank: Natural | Literal["all", "rotating"] = 0  # rotating: step N acts on rank N modulo world_size
    step: Natural = 0  # the first step
    steps: Natural = 0  # number of steps; 0: to the end
    ms: NotNegative = 0.0  # per step; storage and decode: per sample
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5  # lengths: the share of a sequence that remains


class ScenarioConfig(FaultConfig, frozen=True, kw_only=True):
    """A planted fault and the finding that it must cause. A scenario may also be only settings, as a tiny batch."""

    planted: str = "nothing"
    gpu: bool = False  # only visible on a GPU
    finds: list[str] = []  # at least one of these findings must be reported
    finds_rank: Natural | None = None
    fix: list[str] = []  # overrides that remove the fault
    more: list[FaultConfig] = []  # further faults at the same time

    @property
    def planted_faults(self) -> list[FaultConfig]:
        """Every fault of the scenario."""
        return [item for item in (self, *self.more) if item.fault != "none"]
