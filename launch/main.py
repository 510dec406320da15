"""`rankscope run`: overrides in; a run folder, or a sweep of them with -m, and the summary of the analysis out."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
import yaml

from rankscope.conf import ConfigError
from rankscope.conf.contract import OK
from rankscope.launch import sweep
from rankscope.launch.cli import overrides_only, run_command
from rankscope.launch.configure.compose import compose, submission
from rankscope.launch.configure.preflight import refuse_submission
from rankscope.launch.configure.usage import usage
from rankscope.launch.point import HINT, report, run_here
from rankscope.launch.submitted import run_one
from rankscope.launch.system.processes import Stop

# A path that means itself, a text that the user has quoted, an interpolation, or nothing.
_PLAIN = re.compile(r"(?!(?:true|false|nan|inf)$)[A-Za-z_./][A-Za-z0-9_./-]*|[\'\"].*|\$\{.*|", re.DOTALL)


def _usage(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(usage())
        context.exit()


@click.command("rankscope run", context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.option("-m", "--multirun", is_flag=True)
@click.option("--resume", type=click.Path(path_type=Path))
@click.option("--cfg", is_flag=True)
@click.option("-h", "--help", is_flag=True, is_eager=True, expose_value=False, callback=_usage)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def run(multirun: bool, resume: Path | None, cfg: bool, words: tuple[str, ...]) -> int:
    """Run one point, or with -m a sweep; `launch/configure/usage.py` has the text of --help."""
    if words == ("help",):
        click.echo(usage())
        return OK
    if resume is not None:
        if words or cfg:
            raise ConfigError("--resume: give the sweep's folder and nothing else; its points are in its sweep.json")
        with Stop() as stop:
            return sweep.resume(resume, stop)
    overrides = overrides_only(words, ["-m", "--multirun", "--resume", "--cfg", "--help"])
    if multirun and cfg:
        raise ConfigError("--cfg: shows the configuration of one run; leave out -m, and give each key one value")
    if multirun:
        with Stop() as stop:
            return sweep.run_sweep(overrides, stop)
    return _one(overrides, show_only=cfg)


def _one(overrides: Sequence[str], *, show_only: bool) -> int:
    """Run one point here or as a job of SLURM; with `show_only` print its configuration instead."""
    launcher, overrides = submission(overrides)
    config = compose(overrides)
    if show_only:
        print(yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False), end="")
        return OK
    with Stop() as stop:
        if launcher is not None:
            refuse_submission(config)
            return report(run_one(launcher, config, overrides, stop), stop)
        return run_here(config, overrides, stop)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one point or a sweep; returns the exit status: 0, 2 no numbers, 3 partial, 130 or 143 interrupted."""
    arguments = with_literal_script(with_script_args(list(sys.argv[1:] if argv is None else argv)))
    return run_command(run, arguments, hint=HINT, prefix="rankscope")


def with_script_args(arguments: list[str]) -> list[str]:
    """Turn the words after `--` into the override `script_args`."""
    if "--" not in arguments:
        return arguments
    at = arguments.index("--")
    return [*arguments[:at], f"script_args=[{','.join(map(_quoted, arguments[at + 1 :]))}]"]


def with_literal_script(arguments: list[str]) -> list[str]:
    """Quote a path in `script=` that the grammar of overrides would refuse or take for a number, a list or a choice."""
    if "-m" in arguments or "--multirun" in arguments:  # there a comma separates scripts
        return arguments
    return [
        f"script={_quoted(item[7:])}" if item.startswith("script=") and not _PLAIN.fullmatch(item[7:]) else item
        for item in arguments
    ]


def _quoted(word: str) -> str:
    """Return `word` in Hydra's quotes; escapes quotes and interpolations, and the backslashes before them."""
    word = re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", word)
    word = re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), word)
    return f"'{word}'"
