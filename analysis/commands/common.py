"""Shared by the commands of the analysis: paths that may be URLs, and errors as one line and an exit status."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.read import remote
from rankscope.conf import RunDir, RunDirError, command
from rankscope.conf.files import json_text, write_where_asked
from rankscope.conf.sweep_dir import SweepDir

if TYPE_CHECKING:
    _PathType = click.ParamType[Path]
else:  # releases before 8.5 are not generic
    _PathType = click.ParamType


class Location(_PathType):
    """A path to read, or a URL (s3://, gs://, ...), which is copied to this machine."""

    name = "path"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return remote.fetch(value) if isinstance(value, str) and remote.is_url(value) else Path(value)


class Recording(Location):
    """The location of one recording; a folder that holds several is refused, with one of them as an example."""

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = super().convert(value, param, ctx)
        if SweepDir(path).record.is_file():
            raise AnalysisError(f"{path}: a sweep; `rankscope report` shows it, and its runs are in {path / 'points'}")
        if path.is_dir() and not RunDir(path).record.exists():
            runs = sorted(found.parent for found in path.glob(f"*/{RunDir(path).record.name}"))
            if runs:
                raise AnalysisError(f"{path}: a folder of {len(runs)} runs; give one of them, such as {runs[-1]}")
        return path


def _pattern(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """Check that the text is a regular expression."""
    try:
        re.compile(text or "")
    except re.error as error:
        raise click.BadParameter(f"{text!r} is not a regular expression ({error})") from None
    return text


steps_from_option = click.option(
    "--steps-from",
    metavar="NAME|REGEX",
    callback=_pattern,
    help="Name or regular expression of the annotations or NVTX ranges that are steps; a group in it gives the step's "
    "number.",
)
no_cache_option = click.option(
    "--no-cache", is_flag=True, help="Read all traces again, without using or writing the cache."
)


@contextlib.contextmanager
def output(place: str | None) -> Iterator[Path | None]:
    """Yield the local folder to write to. If `place` is a URL, the folder is uploaded at the end of the block."""
    if place is None or not remote.is_url(place):
        yield None if place is None else Path(place)
        return
    with remote.published(place) as folder:
        yield folder


def results_folder(recording: Path) -> Path:
    """Return the folder for what is made of a run or a sweep; `AnalysisError` if it would be written through a link."""
    folder = RunDir(recording).analysis
    link = next((path for path in (folder, *folder.rglob("*")) if path.is_symlink()), None)
    if link is not None:  # a stranger's folder must not choose where files are replaced
        raise AnalysisError(f"{link}: a link, and reports would be written through it; remove it or give --out")
    return folder


def put_json(place: Path | None, data: Any) -> None:
    """Write plain values to the file of --json, to stdout for `-`; None: not asked for."""
    if place == Path("-"):
        click.echo(json_text(data))  # ASCII: names could control the terminal
    elif place is not None:
        write_where_asked(place, json_text(data) + "\n")


def run_command(run: click.Command, argv: list[str]) -> int:
    """Run a command. Bad input gives one line on stderr and exit status 2."""
    known = (AnalysisError, RunDirError)
    return command.run_command(run, argv, known=known, hint="give another path, or --out", prefix="rankscope")
