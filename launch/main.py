"""`rankscope run`: overrides in; a run folder, or with -m a sweep of them, and the analysis's summary out."""

import re
import sys
from collections.abc import Sequence

import msgspec
import yaml

from rankscope.conf import ConfigError
from rankscope.conf.contract import NO_NUMBERS, OK, PARTIAL, TORCH_PASSES
from rankscope.launch import sweep
from rankscope.launch.cli import run_command
from rankscope.launch.configure.compose import compose, submission
from rankscope.launch.configure.preflight import refuse, refuse_submission
from rankscope.launch.configure.usage import usage
from rankscope.launch.run.record import Recorded, analyse, record, say
from rankscope.launch.submitted import run_one
from rankscope.launch.system.processes import Stop
from rankscope.launch.system.torch_facts import torch_facts

_SWEEP_FLAGS = {"-m", "--multirun", "--resume"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one point or a sweep; returns the exit status: 0, 2 no numbers, 3 partial, 130 or 143 interrupted."""
    arguments = with_script_args(list(sys.argv[1:] if argv is None else argv))
    if {"-h", "--help"} & set(arguments):
        print(usage())
        return OK
    return run_command("rankscope", lambda: _run(arguments), hint="give another runs_dir or make room")


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
            return _report(run_one(launcher, config, overrides, stop), stop)
        facts = torch_facts()
        stop.check()
        refuse(config, facts)
        return _report(record(config, overrides, facts, stop), stop)


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


def _report(recorded: Recorded, stop: Stop) -> int:
    """Say what failed, analyse what there is, and return the exit status; of several nodes the first analyses."""
    run_dir, failure, node = recorded.run_dir, recorded.failure, recorded.node
    if failure is not None:
        say(failure.text())
    if not node.leads:
        say(f"rankscope: node {node.number} of {node.count} is done; the first node analyses {run_dir.path}")
        return OK if failure is None else NO_NUMBERS
    if failure is not None:
        ranks = [rank for name in TORCH_PASSES for rank in run_dir.for_pass(name).ranks()]
        traces = [rank for rank in ranks if rank.trace.exists() and rank.info.exists()]
        traces = traces or [rank for rank in run_dir.for_pass("nsys").ranks() if rank.nsys_export.exists()]
        status = analyse(run_dir, stop, partial=True) if traces else NO_NUMBERS
        say(f"rankscope: status failed; what was recorded is kept in {run_dir.path}")
        return PARTIAL if traces and status in (OK, PARTIAL) else NO_NUMBERS
    return analyse(run_dir, stop)


def _overrides(arguments: Sequence[str]) -> list[str]:
    """Return the overrides among the arguments; raises `ConfigError` for a flag that does not exist."""
    flags = [argument for argument in arguments if argument.startswith("-") and argument != "--cfg"]
    if flags:
        raise ConfigError(
            f"{flags[0]}: no such option; there are -m, --resume, --cfg and --help, the rest is key=value"
        )
    return [argument for argument in arguments if argument != "--cfg"]
