"""Plans the points of a sweep: overrides with several values in, one validated configuration per point out.

Adds the one-rank baselines that scaling needs, once each, shared by all points of a job: one process without DDP and
DDP with world size 1, both at the same batch size per rank; for a fixed global batch also one process with all of it.
"""

import itertools
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import msgspec
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException

from rankscope.conf import ConfigError, RunConfig
from rankscope.conf.messages import suggestion
from rankscope.conf.sweep_dir import PointRecord
from rankscope.launch.configure.compose import compose
from rankscope.launch.system.environment import usable_cores

_REPEATS = 3  # of the plain pass, unless the user sets `repeats`
_NAMED = "+sweep="


def plan(overrides: Sequence[str], cores: int | None = None) -> list[PointRecord]:
    """Return the points of a sweep, added baselines first; raises `ConfigError` with one line.

    `cores` is the number of cores that a node has for a point; None means those of this machine.
    """
    expanded = _same_threads(expand(_with_named(overrides)), usable_cores() if cores is None else cores)
    points = [PointRecord(id="", overrides=chosen) for chosen in expanded]
    known = [_identity(compose(point.overrides)) for point in points]
    added: list[PointRecord] = []
    for point in points:
        for wanted in baselines(compose(point.overrides), point.overrides):
            identity = _identity(compose(wanted))
            if identity not in known:
                known.append(identity)
                added.append(PointRecord(id="", overrides=wanted, baseline=True))
    every = added + points
    return [msgspec.structs.replace(point, id=f"{number:03d}") for number, point in enumerate(every)]


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """Return one list of overrides per combination; the first key varies slowest."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise ConfigError(f"{error.override}: cannot be read; write key=value or key=a,b,c") from None
    axes = [
        [f"{item.key_or_group}={value}" for value in item.sweep_string_iterator()]
        if item.is_sweep_override()
        else [str(item.input_line)]
        for item in parsed
    ]
    keys = [item.key_or_group for item in parsed]
    extra = [] if "repeats" in keys else [f"repeats={_REPEATS}"]
    return [[*chosen, *extra] for chosen in itertools.product(*axes)]


def baselines(config: RunConfig, overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of the baselines for this point; none for a point with one rank."""
    if config.world_size == 1 or config.script is not None:  # a script has its own settings for batch and DDP
        return []
    dropped = ("scenario", "name=", "launch.nnodes=")
    kept = [item for item in overrides if not item.lstrip("+").startswith(dropped)]
    batch = config.rank_batch_size
    one = ["world_size=1", f"batch_size={batch}", "global_batch_size=null"]
    found = [[*kept, *one, "ddp=off"], [*kept, *one, "ddp=on"]]
    if config.global_batch_size is not None:  # strong scaling: the global batch on one rank
        whole = ["world_size=1", f"batch_size={batch * config.world_size}", "global_batch_size=null"]
        found.append([*kept, *whole, "ddp=off"])
    return found


def _same_threads(points: list[list[str]], cores: int) -> list[list[str]]:
    """Give a rank the same number of CPU threads in every point: a baseline with the cores of all ranks is not fair."""
    if any(item.startswith("threads=") for item in points[0]):
        return points
    configs = [compose(point) for point in points]
    ranks = max(config.world_size // config.launch.nnodes for config in configs)  # per node
    return [[*point, f"threads={max(1, cores // ranks)}"] for point in points]


def _with_named(overrides: Sequence[str]) -> list[str]:
    """Replace `+sweep=NAME` by the overrides of that sweep; keys that the user set take precedence."""
    names = [item.removeprefix(_NAMED) for item in overrides if item.startswith(_NAMED)]
    own = [item for item in overrides if not item.startswith(_NAMED)]
    if not names:
        return own
    folder = files("rankscope.conf").joinpath("sweep")
    known = sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))
    if len(names) > 1 or names[0] not in known:
        raise ConfigError(
            f"+sweep={','.join(names)}: {suggestion(names[0], known)}name one sweep of {', '.join(known)}"
        )
    listed: list[str] = yaml.safe_load(folder.joinpath(f"{names[0]}.yaml").read_text())["overrides"]
    keys = {item.partition("=")[0].lstrip("+~") for item in own}
    return [item for item in listed if item.partition("=")[0] not in keys] + own


def _identity(config: RunConfig) -> dict[str, Any]:
    """Return what two equal points have in common: everything but names, with the batch size per rank."""
    values: dict[str, Any] = msgspec.to_builtins(config)
    for key in ("name", "run_dir", "runs_dir", "batch_size", "global_batch_size"):
        del values[key]
    return values | {"rank_batch": config.rank_batch_size}
