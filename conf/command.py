"""What all commands share: an error that a user can mend becomes one line on stderr and an exit status."""

import contextlib
import os
from collections.abc import Sequence

import click

from rankscope.conf.contract import INTERRUPTED, NO_NUMBERS, OK
from rankscope.conf.plain_text import visible


def run_command(
    command: click.Command, argv: Sequence[str], *, known: tuple[type[Exception], ...], hint: str, prefix: str
) -> int:
    """Run a command and return its exit status: its own, 2 refused or failed, 130 interrupted.

    The messages of errors of the types `known` are printed after `prefix`. `hint` says what to do about a file or
    folder that the system refuses. Any other error is a bug and goes on.
    """
    name = command.name or prefix
    try:
        with command.make_context(name, list(argv), help_option_names=["-h", "--help"]) as context:
            return int(command.invoke(context) or OK)
    except click.exceptions.Exit as end:  # --help
        return end.exit_code
    except click.ClickException as error:
        said = error.format_message().rstrip(".")
        complain(f"{name}: {said}{'' if said.endswith('?') else ';'} `{name} --help` explains it")
    except (click.exceptions.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except known as error:
        complain(f"{prefix}: {error}")
    except BrokenPipeError:  # the reader of our output left: `rankscope ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return OK
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        complain(f"{prefix}: {place}{error.strerror or error}; {hint}")
    return NO_NUMBERS


def say(text: str) -> None:
    """Print a line on stdout. It may name files and hold text from them."""
    click.echo(visible(text))


def complain(text: str) -> None:
    """Print a message on stderr. It may name files and hold text from them."""
    with contextlib.suppress(OSError):  # nobody can be told that stderr is full; the exit status still matters
        click.echo(visible(text), err=True)
