"""What a job of SLURM runs on each of its nodes: one point, as `rankscope run` would on that machine."""

import signal
import sys
from collections.abc import Sequence

from rankscope.launch.cli import run_command
from rankscope.launch.configure.compose import compose
from rankscope.launch.point import HINT, run_here
from rankscope.launch.system.processes import Stop


def job(overrides: Sequence[str]) -> None:
    """Run one point and end the process with its exit status; submitit calls this on each node."""
    # submitit sends SIGUSR2 before the job's time limit. A run watches its limit itself, and its ranks would die of
    # the signal.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    sys.exit(run_command("rankscope", lambda: _run(overrides), hint=HINT))


def _run(overrides: Sequence[str]) -> int:
    config = compose(overrides)
    with Stop() as stop:
        return run_here(config, overrides, stop)
