"""Refuses a run that this machine cannot do, before anything starts: a configuration in, `ConfigError` or nothing."""

import os
import shutil
import sys
import zipfile
from importlib.machinery import PathFinder
from pathlib import Path

from rankscope.conf import ConfigError, RunConfig
from rankscope.conf.messages import suggestion
from rankscope.launch.system.environment import usable_cores
from rankscope.launch.system.nsys_command import PASS, program
from rankscope.launch.system.torch_facts import TorchFacts

_NAMED = 5  # scripts named in a message


def refuse(config: RunConfig, torch: TorchFacts) -> None:
    """Raise `ConfigError` with one line if the run cannot work on this machine."""
    _check_started_alone()
    _check_script(config)
    _check_devices(config, torch)
    _check_nodes(config)
    _check_disk(config)
    if PASS in config.passes:
        program(config)
    _check_turn(config)


def refuse_submission(config: RunConfig) -> None:
    """Raise `ConfigError` if the run cannot be submitted from here. Its nodes check themselves later."""
    _check_started_alone()
    _check_script(config)
    _check_disk(config)


def shared_cores(config: RunConfig, torch: TorchFacts) -> str | None:
    """Return a line if ranks on a CPU must share its cores and so slow each other down; None if they need not."""
    ranks, cores = config.world_size // config.launch.nnodes, usable_cores()
    if (torch.devices and config.device != "cpu") or ranks <= cores:
        return None
    shared = f"{ranks} ranks share {cores} core{'s' if cores > 1 else ''} and slow each other down"
    return f"world_size={config.world_size}: {shared}; this is not how they scale on cores of their own"


def _check_started_alone() -> None:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ConfigError("rankscope run starts torchrun itself: run it without torchrun around it")


def _check_script(config: RunConfig) -> None:
    script = config.script
    if script is None:
        return
    path = Path(script)
    if path.is_dir() and not (path / "__main__.py").is_file():
        names = ", ".join(sorted(map(str, path.glob("*.py")))[:_NAMED]) or "it has no Python file"
        raise ConfigError(f"script={script}: a folder without a __main__.py; give a file in it ({names})")
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(4096)
        first = head.partition(b"\n")[0]
        if b"\0" in head or zipfile.is_zipfile(path) or (first.startswith(b"#!") and b"python" not in first):
            raise ConfigError(f"script={script}: not a Python script; give the script that it starts")
        return
    if not path.is_dir() and not _is_module(script):
        near = suggestion(script, [str(found) for found in sorted(path.parent.glob("*.py"))])
        raise ConfigError(f"script={script}: no such file; {near}give its path from this folder ({Path.cwd()})")


def _is_module(name: str) -> bool:
    """Return whether `python -m NAME` may find a module; only its first part is looked for, since nothing is run."""
    if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        return False
    return PathFinder.find_spec(name.partition(".")[0], [str(Path.cwd()), *sys.path]) is not None


def _check_devices(config: RunConfig, torch: TorchFacts) -> None:
    if torch.version is None:
        raise ConfigError(str(torch.error))
    gpus, ranks = len(torch.devices), config.world_size // config.launch.nnodes
    if config.device == "cuda" and gpus == 0:
        raise ConfigError(f"device=cuda: torch sees no GPU here ({torch.error or 'none is visible'}); use device=cpu")
    if config.backend == "nccl" and gpus == 0:
        raise ConfigError("backend=nccl: torch sees no GPU here, and NCCL moves GPU memory only; use backend=gloo")
    if config.device != "cpu" and 0 < gpus < ranks:
        nodes = f" on each of {config.launch.nnodes} nodes" if config.launch.nnodes > 1 else ""
        raise ConfigError(
            f"world_size={config.world_size}: needs {ranks} GPUs{nodes} and this machine has {gpus}; "
            "one rank needs one GPU; use fewer ranks or device=cpu"
        )


def _check_nodes(config: RunConfig) -> None:
    nodes, endpoint = config.launch.nnodes, config.launch.rdzv_endpoint
    if nodes > 1 and config.run_dir is None:
        raise ConfigError(
            f"run_dir=null with launch.nnodes={nodes}: the nodes meet in the run folder; "
            "name a new folder that all of them see"
        )
    if nodes > 1 and endpoint.partition(":")[0] in ("localhost", "127.0.0.1", ""):
        raise ConfigError(
            f"launch.nnodes={nodes} with launch.rdzv_endpoint={endpoint}: "
            "name a host and port that every node reaches, or use auto"
        )


def _check_turn(config: RunConfig) -> None:
    turn = config.launch.turn
    try:
        if turn is not None:
            Path(turn).open("a").close()
    except OSError as error:
        raise ConfigError(f"launch.turn={turn}: {error.strerror}; name a file in a folder you may write") from None


def _check_disk(config: RunConfig) -> None:
    target = Path(config.run_dir).parent if config.run_dir is not None else Path(config.runs_dir)
    target = target.absolute()
    while not target.exists():
        target = target.parent
    if not (target.is_dir() and os.access(target, os.W_OK | os.X_OK)):
        raise ConfigError(f"{target}: the run folder cannot be made here; set runs_dir to a folder you may write")
    free = shutil.disk_usage(target).free // 2**20
    if free < config.launch.min_free_mb:
        raise ConfigError(
            f"{target}: {free} MiB free, fewer than launch.min_free_mb={config.launch.min_free_mb}; "
            "make room or set runs_dir to another disk"
        )
