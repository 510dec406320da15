"""The text of `rankscope run --help`, generated from the schema so that it is never outdated."""

import textwrap
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from rankscope.conf import RunConfig
from rankscope.conf.key_help import KEY_HELP
from rankscope.conf.sections import SlurmConfig
from rankscope.launch.configure.compose import option_groups

_HEAD = """\
usage: rankscope run script=FILE [KEY=VALUE]... [-- ARGUMENT...]
       rankscope run [KEY=VALUE | GROUP=OPTION]...

Trains on N ranks, records every rank, and shows where the time of a step goes:
your own script, with its arguments after --, or a reference model. Nothing
starts before the whole configuration is valid.

  rankscope run script=train.py world_size=2 -- --epochs 3 --lr 1e-4
  rankscope run world_size=2 batch_size=4 device=cpu
  rankscope run model=resnet precision=bf16 world_size=8 ddp.bucket_cap_mb=50
  rankscope run 'passes=[plain]' compile=default name=compiled
  rankscope run -m world_size=1,2,4 batch_size=8,16

  -m              a sweep: every combination of values, and the one-rank
                  baselines that scaling needs; +sweep=NAME takes a named one:
                  weak, strong, buckets, loader, latency
  --resume SWEEP  run the missing and failed points of a sweep

  hydra/launcher=slurm   a run, or each point of a sweep, as a SLURM job;
                         hydra.launcher.* sets how it is submitted

  -h, --help      this text
  --cfg           print the composed configuration as YAML and start nothing

Exit status: 0 done; 2 refused, or failed without numbers; 3 partial numbers;
130 or 143 interrupted."""


def usage() -> str:
    """Return the help text, at most 80 columns wide."""
    groups = [
        line
        for name, options in option_groups().items()
        for line in _wrapped(" | ".join(options), f"  {name:<10} ", " " * 13)
    ]
    lines = [
        _HEAD,
        "",
        "Groups, a set of values by name:",
        *groups,
        "",
        "Keys, with their defaults and what they take:",
    ]
    hints = get_type_hints(RunConfig, include_extras=True)
    sections = {name: hint for name, hint in hints.items() if _is_section(hint)}
    lines += _rows(RunConfig(), {name: hint for name, hint in hints.items() if name not in sections}, "")
    for name, section in sections.items():
        lines += ["", *_rows(section(), get_type_hints(section, include_extras=True), f"{name}.")]
    lines += ["", "Keys of hydra/launcher=slurm:"]
    lines += _rows(SlurmConfig(), get_type_hints(SlurmConfig, include_extras=True), "hydra.launcher.")
    return "\n".join(lines)


def _rows(values: msgspec.Struct, hints: dict[str, Any], prefix: str) -> list[str]:
    rows = []
    for name, hint in hints.items():
        text = f"  {prefix}{name}={_yaml(getattr(values, name))}"
        allowed = _allowed(hint)
        fits = len(allowed) <= 41 and len(text) <= 38
        rows += [f"{text:<38} {allowed}"] if fits else [text, *_wrapped(allowed, " " * 6, " " * 6)]
        rows += _wrapped(KEY_HELP[f"{prefix}{name}"], " " * 6, " " * 6)
    return rows


def _wrapped(text: str, first: str, other: str) -> list[str]:
    return textwrap.wrap(text, 80, initial_indent=first, subsequent_indent=other, break_on_hyphens=False)


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _yaml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _allowed(hint: Any) -> str:
    """Describe the values that a key accepts, in a few words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [f" {sign} {getattr(meta, key)}" for meta in args[1:] for key, sign in _BOUNDS if _has(meta, key)]
        return _allowed(args[0]) + "".join(bounds)
    if origin is Literal:
        return " | ".join(map(str, args))
    if origin is list:
        return f"list of {_allowed(args[0])}"
    if origin is dict:
        return f"{{{_allowed(args[0])}: {_allowed(args[1])}}}"
    if _is_section(hint):
        return "{" + ", ".join(f"{field.name}: ..." for field in msgspec.structs.fields(hint)) + "}"
    if args:  # an optional value
        return " | ".join(_allowed(arg) for arg in args)
    return {int: "int", float: "number", str: "text", bool: "true | false", type(None): "null"}.get(hint, str(hint))


_BOUNDS = (("ge", ">="), ("gt", ">"))


def _has(meta: Any, key: str) -> bool:
    return getattr(meta, key, None) is not None
