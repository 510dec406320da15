"""The configuration of a point: converts plain data to one validated, immutable `RunConfig`.

Every value is checked before anything starts. An error names the key, the value and what is allowed.
Hydra composes the plain data in `launch`. Ranks and analysis read the resolved `config.yaml` and do not use Hydra.
"""

import functools
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from rankscope.conf.checks import check
from rankscope.conf.contract import PassName
from rankscope.conf.files import read_bytes, write_text
from rankscope.conf.messages import ConfigError, describe
from rankscope.conf.sections import (
    Count,
    DataConfig,
    DdpConfig,
    LaunchConfig,
    ModelConfig,
    Natural,
    NotNegative,
    NsysConfig,
    OptimizerConfig,
    ParallelConfig,
    PrecisionConfig,
    ProfileConfig,
    RankCount,
    ScenarioConfig,
    ScriptArgument,
    Section,
)


class RunConfig(Section, frozen=True, kw_only=True):
    """One point: what is trained, on how many ranks, and in which passes it is measured."""

    name: str = "run"
    script: str | None = None  # your own training script instead of the reference model: a file, or a module name
    script_args: list[ScriptArgument] | str = msgspec.field(
        default_factory=list
    )  # [--epochs,3], or one text that is split as a shell does
    steps_from: Literal["auto", "recorder", "profiler", "optimizer", "loader", "backward", "model"] = (
        "auto"  # which marks end its steps
    )
    run_on: bool = False  # let the script continue to its own end after recording
    mode: Literal["train", "eval", "inference"] = "train"
    runs_dir: str = "runs"
    run_dir: str | None = None  # null: a new folder under runs_dir
    passes: list[PassName] = msgspec.field(default_factory=lambda: ["plain", "timed", "torch", "detail"])
    separate: bool = False  # each pass in its own processes; otherwise plain, timed, torch and detail share one start
    world_size: RankCount = 1
    batch_size: Count | None = 8  # per rank and micro-step; null if global_batch_size is set
    global_batch_size: Count | None = None  # over all ranks and micro-steps of an optimizer step
    repeats: Count = 1  # of the plain pass, each in new processes; a sweep uses 3
    gradient_accumulation: Count = 1
    steps: Count = 50  # measured steps of the plain pass, at least
    seconds: NotNegative = 10.0  # measured time of the plain pass, at least; 0: only `steps` counts
    timed_steps: Count = 30  # steps in which NCCL times every collective
    warmup_steps: Natural = 11  # on a GPU DDP times its own first ten steps, waiting for the device
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"] = "off"
    num_workers: Natural = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    threads: Natural = 0  # CPU threads of a rank; 0: cores of the node / ranks of the node
    seed: int = 0
    log_every: Count = 10  # steps between two reads of the loss
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    ddp: DdpConfig = DdpConfig()
    parallel: ParallelConfig = ParallelConfig()  # for model=gpt in training; ddp=off switches it off too
    precision: PrecisionConfig = PrecisionConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    profile: ProfileConfig = ProfileConfig()
    nsys: NsysConfig = NsysConfig()
    launch: LaunchConfig = LaunchConfig()
    scenario: ScenarioConfig = ScenarioConfig()

    @property
    def script_argv(self) -> list[str]:
        """The script's arguments as strings."""
        if isinstance(self.script_args, str):
            return shlex.split(self.script_args)
        return [argument if isinstance(argument, str) else json.dumps(argument) for argument in self.script_args]

    @property
    def parallelism(self) -> str:
        """How the model is spread over the ranks; `none` in a plain process, and without gradients."""
        return self.parallel.name if self.ddp.enabled and self.mode == "train" and self.script is None else "none"

    @property
    def replicas(self) -> int:
        """How many ranks have samples of their own."""
        return 1 if self.parallelism != "none" and self.parallel.one_replica else self.world_size

    @property
    def rank_batch_size(self) -> int:
        """Samples of one rank in one micro-step; with tensor or pipeline parallelism of all ranks together."""
        if self.global_batch_size is not None:
            return self.global_batch_size // (self.replicas * self.gradient_accumulation)
        assert self.batch_size is not None  # _check_batch ensures this
        return self.batch_size

    @property
    def samples_per_step(self) -> int:
        """Samples of all ranks in one step."""
        return self.rank_batch_size * self.replicas * self.gradient_accumulation


def parse_config(data: Mapping[str, Any]) -> RunConfig:
    """Convert plain data to a `RunConfig`. Raises `ConfigError` with one line that says what to change."""
    try:
        config = msgspec.convert(data, RunConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(describe(error, data, RunConfig)) from None
    check(config)
    return config


_MOST_BYTES = 1 << 18  # of a config.yaml, which has two thousand; reading YAML takes a second for 100 kB


def load_config(path: Path) -> RunConfig:
    """Read a resolved `config.yaml`, also that of another version: keys that this one does not know are left out.

    Keys are not checked against each other again. The launcher did that, with the defaults of its version.
    """
    try:
        found = _config_of(read_bytes(path))
    except OSError as error:
        found = f"cannot be read as a rankscope configuration ({error})"
    if isinstance(found, str):
        raise ConfigError(f"{path}: {found}")
    return found


@functools.lru_cache(maxsize=16)  # an analysis asks for the same settings in several places
def _config_of(text: bytes) -> RunConfig | str:
    """Return the settings, or what is wrong with the text."""
    from rankscope.conf import plain_yaml  # takes longer to import than all of conf, and most commands read no YAML

    data: Any = None
    try:
        if len(text) > _MOST_BYTES:
            raise ValueError(f"{len(text)} bytes are more than {_MOST_BYTES}")
        data = plain_yaml.load(text)
        return msgspec.convert(_known(data, RunConfig), RunConfig)
    except msgspec.ValidationError as error:
        return describe(error, data, RunConfig)
    except (ValueError, plain_yaml.Error, TypeError, RecursionError) as error:
        said = " ".join(str(error).split())  # YAML errors have several lines
        return f"cannot be read as a rankscope configuration ({said})"


def _known(data: Any, section: type[Section]) -> Any:
    """Return `data` without keys that `section` does not have; anything but a mapping stays as it is."""
    if not isinstance(data, Mapping):
        return data
    fields = {field.name: field.type for field in msgspec.structs.fields(section)}
    return {
        name: _known(value, fields[name]) if _is_section(fields[name]) else value
        for name, value in data.items()
        if name in fields
    }


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def save_config(config: RunConfig, path: Path) -> None:
    """Write `config` in the form that `load_config` reads."""
    from rankscope.conf import plain_yaml

    write_text(path, plain_yaml.dump(msgspec.to_builtins(config)))
