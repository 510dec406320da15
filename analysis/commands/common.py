"""What the analysis's commands share: paths that may be URLs, and errors as one line and an exit status."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.read import remote
from rankscope.conf import RunDirError
from rankscope.conf.contract import INTERRUPTED, NO_NUMBERS, OK

if TYPE_CHECKING:
    _PathType = click.ParamType[Path]
else:  # releases before 8.5 are not generic
    _PathType = click.ParamType


class Location(_PathType):
    """A path to read, or a URL (s3://, gs://, ...), of which a local copy is made."""

    name = "path"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the local path."""
        return remote.fetch(value) if isinstance(value, str) and remote.is_url(value) else Path(value)


@contextlib.contextmanager
def output(place: str | None) -> Iterator[Path | None]:
    """Give the folder to write to; one at a URL is published when the block has ended."""
    if place is None or not remote.is_url(place):
        yield None if place is None else Path(place)
        return
    with remote.published(place) as folder:
        yield folder


def run_command(command: click.Command, argv: list[str]) -> int:
    """Run a command; bad input is one line on stderr and exit status 2."""
    try:
        return int(command.main(argv, prog_name=command.name, standalone_mode=False) or 0)
    except click.ClickException as error:
        click.echo(f"{command.name}: {error.format_message()}", err=True)
    except click.exceptions.Abort:
        return INTERRUPTED
    except (AnalysisError, RunDirError) as error:
        click.echo(f"rankscope: {error}", err=True)
    except BrokenPipeError:  # the reader of our output left: `rankscope ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return OK
    except OSError as error:
        click.echo(f"rankscope: {error.filename}: {error.strerror}; give another path, or --out", err=True)
    return NO_NUMBERS
