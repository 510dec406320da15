"""Composes a configuration with Hydra: overrides from the command line in, a validated `RunConfig` out.

The compose API has advantages over `hydra.main`: every point of a sweep can be validated before the first one starts,
the working folder and the logging stay as they are, and errors are exceptions, which become one line here.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hydra
import msgspec
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rankscope.conf import ConfigError, RunConfig, parse_config
from rankscope.conf.checks import refuse_ignored
from rankscope.conf.messages import among, describe, suggestion
from rankscope.conf.sections import SlurmConfig

_MODULE = "rankscope.conf"
_LAUNCHER = "hydra.launcher"


def compose(overrides: Sequence[str]) -> RunConfig:
    """Compose and validate one point; raises `ConfigError` with one line that names the key."""
    _register_schema()
    with _one_line_errors(), hydra.initialize_config_module(_MODULE, job_name="rankscope", version_base="1.3"):
        groups = _groups()
        # every group has a default, so +scenario=slow_host means the same as scenario=slow_host
        overrides = [item[1:] if item[1:].partition("=")[0] in groups else item for item in overrides]
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        for override in parsed:
            _check(override, groups, keys())
        data = OmegaConf.to_container(hydra.compose("config", list(overrides)), resolve=True)
    assert isinstance(data, dict)  # config.yaml is a mapping
    config = parse_config({str(key): value for key, value in data.items()})
    refuse_ignored(config, [str(override.key_or_group) for override in parsed])
    return config


def submission(overrides: Sequence[str]) -> tuple[SlurmConfig | None, list[str]]:
    """Split the overrides into how a run is submitted (`hydra/launcher*`; None: it runs here) and what is run."""
    mine = [item for item in overrides if item.lstrip("+").startswith(("hydra/launcher", f"{_LAUNCHER}."))]
    rest = [item for item in overrides if item not in mine]
    if not mine:
        return None, rest
    _register_schema()
    groups = {"hydra/launcher": ["basic", "slurm"]}
    with _one_line_errors(), hydra.initialize_config_module(_MODULE, job_name="rankscope", version_base="1.3"):
        parsed = OverridesParser.create().parse_overrides(mine)
        for override in parsed:
            _check(override, groups, keys(SlurmConfig, f"{_LAUNCHER}."))
        if not any(item.key_or_group == "hydra/launcher" and item.value() == "slurm" for item in parsed):
            if len(mine) > 1 or "basic" not in mine[0]:
                raise ConfigError(f"{mine[0]}: needs hydra/launcher=slurm")
            return None, rest
        chosen = hydra.compose("config", mine, return_hydra_config=True).hydra.launcher
        plain = OmegaConf.to_container(chosen, resolve=True)
    assert isinstance(plain, dict)  # slurm.yaml is a mapping
    data = {str(key): value for key, value in plain.items()}
    try:
        return msgspec.convert(data, SlurmConfig), rest
    except msgspec.ValidationError as error:
        raise ConfigError(f"{_LAUNCHER}.{describe(error, data, SlurmConfig)}") from None


def option_groups() -> dict[str, list[str]]:
    """Return the configuration groups and the options of each."""
    _register_schema()
    with hydra.initialize_config_module(_MODULE, job_name="rankscope", version_base="1.3"):
        return _groups()


def keys(section: Any = RunConfig, prefix: str = "") -> list[str]:
    """Return every key that can be set, dotted, sections included."""
    found = []
    for field in msgspec.structs.fields(section):
        found.append(prefix + field.name)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found += keys(field.type, f"{prefix}{field.name}.")
    return found


def _register_schema() -> None:
    store = ConfigStore.instance()
    store.store(name="schema", node=msgspec.to_builtins(RunConfig()))
    store.store(group="hydra/launcher", name="slurm_keys", node=msgspec.to_builtins(SlurmConfig()))


@functools.cache  # the files of the package; Hydra copies its configuration for each group that it lists
def _groups() -> dict[str, list[str]]:
    loader = GlobalHydra.instance().config_loader()
    names = [
        name for name in loader.list_groups("") if name not in ("hydra", "sweep")
    ]  # a sweep is not part of a point
    return {name: loader.get_group_options(name, ObjectType.CONFIG) for name in sorted(names)}


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turn errors of Hydra into a `ConfigError` with one line."""
    try:
        yield
    except OverrideParseException as error:
        word = str(error.override)
        near = f"did you mean script={word}? " if word.endswith(".py") else ""
        raise ConfigError(f"{word}: cannot be read; {near}write key=value, with quotes if necessary") from None
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_one_line(error)) from None


def _check(override: Override, groups: dict[str, list[str]], known: Sequence[str]) -> None:
    """Refuse what Hydra refuses with a page of text, or accepts although it is wrong (`+key` adds any key)."""
    key, value = override.key_or_group, override.value()
    if key not in known and key not in groups:
        hint = suggestion(key, [*known, *groups]).strip() or "`rankscope run --help` lists every key"
        raise ConfigError(f"{key}: unknown key; {hint}")
    if override.is_sweep_override():
        raise ConfigError(
            f"{override.input_line}: several values; a run takes one (write a list as [a,b]), for a sweep use run -m"
        )
    if key in groups and isinstance(value, dict):
        raise ConfigError(f"{key}: is a group; name an option ({', '.join(groups[key])}) or set {key}.<key>=...")
    if key in groups and not override.is_delete() and str(value) not in groups[key]:
        raise ConfigError(f"{key}={value}: no such option; {among(str(value), groups[key])}")


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(line for line in lines if not line.startswith("object_type")) or type(error).__name__
