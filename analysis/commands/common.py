"""Shared by the commands of the analysis: paths that may be URLs, and errors as one line and an exit status."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.read import remote
from rankscope.conf import RunDir, RunDirError, command

if TYPE_CHECKING:
    _PathType = click.ParamType[Path]
else:  # releases before 8.5 are not generic
    _PathType = click.ParamType


class Location(_PathType):
    """A path to read, or a URL (s3://, gs://, ...), which is copied to this machine."""

    name = "path"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return remote.fetch(value) if isinstance(value, str) and remote.is_url(value) else Path(value)


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


def run_command(run: click.Command, argv: list[str]) -> int:
    """Run a command. Bad input gives one line on stderr and exit status 2."""
    known = (AnalysisError, RunDirError)
    return command.run_command(run, argv, known=known, hint="give another path, or --out", prefix="rankscope")
