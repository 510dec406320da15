"""What all commands share: errors as one line and an exit status."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import click
import pytest

from rankscope.conf.command import run_command


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "line", "status"),
    [
        (OSError(errno.EACCES, "Permission denied", "/a"), "said: /a: Permission denied; give another path", 2),
        (OSError(errno.EIO, "Input/output error"), "said: Input/output error; give another path", 2),
        (OSError("no text of the system"), "said: no text of the system; give another path", 2),
        (KeyError("known"), "said: 'known'", 2),
        (click.UsageError("no such thing"), "rankscope try: no such thing; `rankscope try --help` explains it", 2),
        (KeyboardInterrupt(), "", 130),
        (click.Abort(), "", 130),
        (BrokenPipeError(), "", 0),
    ],
    ids=repr,
)
def test_what_a_user_can_mend_is_one_line(
    error: BaseException, line: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "dup2", lambda *_: 0)
    command = click.Command("rankscope try", callback=raising(error))
    assert run_command(command, [], known=(KeyError,), hint="give another path", prefix="said") == status
    assert capsys.readouterr().err == (f"{line}\n" if line else "")


def test_a_bug_goes_on() -> None:
    command = click.Command("rankscope try", callback=raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        run_command(command, [], known=(KeyError,), hint="", prefix="said")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = click.Command("rankscope try", callback=raising(ZeroDivisionError()), help="Tries.")
    assert run_command(command, [flag], known=(), hint="", prefix="said") == 0
    assert "Usage: rankscope try" in capsys.readouterr().out


def test_a_reader_that_left_is_no_error() -> None:
    """As of `rankscope ... | head -1`."""
    code = (
        "import click, sys; from rankscope.conf.command import run_command\n"
        "talk = click.Command('talk', callback=lambda: [click.echo('line') for _ in range(100_000)] and None)\n"
        "sys.exit(run_command(talk, [], known=(), hint='', prefix='said'))"
    )
    talk = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert talk.stdout is not None and talk.stderr is not None
    assert talk.stdout.readline() == "line\n"
    talk.stdout.close()
    said = talk.stderr.read()
    assert talk.wait(30) == 0 and said == "", (said, signal.SIGPIPE)
    talk.stderr.close()
