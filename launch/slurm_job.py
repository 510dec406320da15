"""What a job of SLURM runs on each of its nodes: one point, as `rankscope run` would on that machine."""

import signal
import sys
from collections.abc import Sequence

import click

from rankscope.launch.cli import run_command
from rankscope.launch.configure.compose import compose
from rankscope.launch.point import HINT, run_here
from rankscope.launch.system.processes import Stop


@click.command("rankscope run", context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
def _run(overrides: tuple[str, ...]) -> int:
    config = compose(overrides)
    with Stop() as stop:
        return run_here(config, overrides, stop)


def job(overrides: Sequence[str]) -> None:
    """Run one point and end the process with its exit status; submitit calls this on each node."""
    # submitit sends SIGUSR2 before the job's time limit. A run watches its limit itself, and its ranks would die of
    # the signal.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    sys.exit(run_command(_run, overrides, hint=HINT, prefix="rankscope"))
