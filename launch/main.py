"""`rankscope run`: overrides in; a run folder, or with -m a sweep of them, and the analysis's summary out."""

import re
import sys
from collections.abc import Sequence

import msgspec
import yaml

from rankscope.conf import ConfigError
from rankscope.conf.contract import OK
from rankscope.launch import sweep
from rankscope.launch.cli import run_command
from rankscope.launch.configure.compose import compose, submission
from rankscope.launch.configure.preflight import refuse_submission
from rankscope.launch.configure.usage import usage
from rankscope.launch.point import HINT, report, run_here
from rankscope.launch.submitted import run_one
from rankscope.launch.system.processes import Stop

_SWEEP_FLAGS = {"-m", "--multirun", "--resume"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one point or a sweep; returns the exit status: 0, 2 no numbers, 3 partial, 130 or 143 interrupted."""
    arguments = with_script_args(list(sys.argv[1:] if argv is None else argv))
    if {"-h", "--help"} & set(arguments):
        print(usage())
        return OK
    return run_command("rankscope", lambda: _run(arguments), hint=HINT)


def _run(arguments: Sequence[str]) -> int:
    if _SWEEP_FLAGS & set(arguments):
        return _sweep(arguments)
    launcher, overrides = submission(_overrides(arguments))
    config = compose(overrides)
    if "--cfg" in arguments:
        print(yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False), end="")
        return OK
    with Stop() as stop:
        if launcher is not None:
            refuse_submission(config)
            return report(run_one(launcher, config, overrides, stop), stop)
        return run_here(config, overrides, stop)


def with_script_args(arguments: list[str]) -> list[str]:
    """Turn what follows `--` into `script_args`, word by word."""
    if "--" not in arguments:
        return arguments
    at = arguments.index("--")
    return [*arguments[:at], f"script_args=[{','.join(map(_quoted, arguments[at + 1 :]))}]"]


def _quoted(word: str) -> str:
    """Return `word` in Hydra's quotes: quotes and interpolations are escaped, and backslashes only before those."""
    word = re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", word)
    word = re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), word)
    return f"'{word}'"


def _sweep(arguments: Sequence[str]) -> int:
    path, rest = sweep.parse(arguments)
    with Stop() as stop:
        return sweep.run_sweep(_overrides(rest), stop) if path is None else sweep.resume(path, stop)


def _overrides(arguments: Sequence[str]) -> list[str]:
    """Return the overrides among the arguments; raises `ConfigError` for a flag that does not exist."""
    flags = [argument for argument in arguments if argument.startswith("-") and argument != "--cfg"]
    if flags:
        raise ConfigError(
            f"{flags[0]}: no such option; there are -m, --resume, --cfg and --help, the rest is key=value"
        )
    return [argument for argument in arguments if argument != "--cfg"]
