"""The command `rankscope`: a table from each command to its module, which is imported only if the command is used.

The table holds names instead of functions, because `launch` and `analysis` must not import each other, and the analysis
must start without torch and Hydra.
"""

import atexit
import gc
import importlib
import io
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import click

from rankscope.conf.command import complain
from rankscope.conf.contract import INTERRUPTED, NO_NUMBERS
from rankscope.conf.messages import suggestion
from rankscope.conf.version import VERSION

# command: (module, function that takes the remaining arguments and returns an exit status, one line of help)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "run": (
        "rankscope.launch.main",
        "main",
        "train on N ranks, record every rank, analyse",
    ),
    "demo": (
        "rankscope.launch.demo",
        "main",
        "record a healthy and a faulty job here, half a minute",
    ),
    "analyze": (
        "rankscope.analysis.commands.analyze",
        "main",
        "analyse a run folder, a folder of traces, or trace files",
    ),
    "ingest": (
        "rankscope.analysis.commands.ingest",
        "main",
        "read ranks in advance, as parts of a job array",
    ),
    "report": (
        "rankscope.analysis.commands.report_compare",
        "report_main",
        "scaling efficiency of a sweep, and where time is lost",
    ),
    "compare": (
        "rankscope.analysis.commands.report_compare",
        "compare_main",
        "compare two runs or sweeps by metric; a gate for CI",
    ),
    "try": (
        "rankscope.launch.trial",
        "main",
        "measure what the advice of a finding really brings",
    ),
    "whatif": (
        "rankscope.analysis.commands.whatif",
        "main",
        "what decides a step, and what a change would bring",
    ),
    "timeline": (
        "rankscope.analysis.commands.timeline",
        "main",
        "draw all ranks on one clock (picture, page, Perfetto)",
    ),
    "explain": (
        "rankscope.analysis.commands.explain",
        "main",
        "what a recording tells and cannot tell, for programs",
    ),
    "mcp": (
        "rankscope.analysis.commands.mcp_server",
        "main",
        "serve recordings to agents (Model Context Protocol)",
    ),
    "capture": (
        "rankscope.analysis.commands.capture",
        "main",
        "record a window of a job that already runs",
    ),
    "hang": (
        "rankscope.analysis.commands.hang",
        "main",
        "which rank blocks a job that hangs, from its dumps",
    ),
    "collectives": (
        "rankscope.analysis.commands.collectives",
        "main",
        "which rank blocks the others, from NCCL Inspector",
    ),
    "tensorboard": (
        "rankscope.analysis.commands.tensorboard",
        "main",
        "write a run or sweep as a log folder for TensorBoard",
    ),
    "wandb": (
        "rankscope.analysis.commands.wandb",
        "main",
        "write a run or sweep to Weights & Biases",
    ),
    "mlflow": (
        "rankscope.analysis.commands.mlflow",
        "main",
        "write a run or sweep to MLflow",
    ),
    "nsys-strip": (
        "rankscope.analysis.commands.nsys_strip",
        "main",
        "copy nsys exports without their private data",
    ),
    "ceilings": (
        "rankscope.launch.ceilings",
        "main",
        "measure this node: collectives, copies, arithmetic",
    ),
    "ncu": ("rankscope.launch.ncu.command", "main", "run Nsight Compute on the heaviest kernels of a rank"),
    "doctor": (
        "rankscope.launch.doctor.doctor",
        "main",
        "show what is installed, what is missing, how to get it",
    ),
}

_NEEDS = {
    "hydra": "train",
    "mcp": "mcp",
    "mlflow": "mlflow",
    "omegaconf": "train",
    "psutil": "train",
    "pydantic": "mcp",
    "tensorboardX": "tensorboard",
    "torch": "train",
    "wandb": "wandb",
}


class _Lazy(click.Command):
    """A command whose module is imported when it is called; it reads its arguments itself."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = list(args)  # with flags and `--` as they are
        return ctx.args

    def invoke(self, ctx: click.Context) -> int:
        module, function, _ = COMMANDS[str(self.name)]
        try:
            entry: Callable[[list[str]], int] = getattr(importlib.import_module(module), function)
        except ModuleNotFoundError as error:
            extra = _NEEDS.get((error.name or "").partition(".")[0])
            if extra is None:
                raise
            text = f"{error.name} is not installed; pip install 'rankscope[{extra}]'"
            complain(f"rankscope {self.name}: {text}")
            return NO_NUMBERS
        return entry(ctx.args)


class _Table(click.Group):
    """The commands of the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return _Lazy(name, short_help=COMMANDS[name][2]) if name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            if args[0].endswith(".py"):
                raise click.UsageError(f"no command {args[0]!r}; did you mean rankscope run script={args[0]}?")
            raise click.UsageError(
                f"no command {args[0]!r}; {suggestion(args[0], list(COMMANDS))}the commands are {', '.join(COMMANDS)}"
            )
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: click.Context) -> str:
        width = max(map(len, COMMANDS))
        lines = [f"  rankscope {name:<{width}} {text}" for name, (_, _, text) in COMMANDS.items()]
        first = "Profiles distributed training and shows where the time of a step goes."
        return "\n".join([first, "", *lines, "", "rankscope COMMAND --help explains a command."])


@click.group("rankscope", cls=_Table, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, "-V", "--version", message="rankscope %(version)s")
def rankscope() -> None: ...


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 valid, 2 no numbers, 3 partial, 4 a gate broken, 1 a bug."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the terminal's encoding lacks is printed as an escape
            stream.reconfigure(errors="backslashreplace")
    words = ["--help"] if arguments[:1] in ([], ["help"]) else list(arguments)
    try:
        with rankscope.make_context("rankscope", words) as context:
            status: Any = rankscope.invoke(context)
            return int(status)
    except click.exceptions.Exit as end:  # --help, --version
        return end.exit_code if arguments else NO_NUMBERS
    except click.ClickException as error:
        complain(f"rankscope: {error.format_message()}")
        return NO_NUMBERS
    except OSError as error:  # of a command's help; a command handles its own
        complain(f"rankscope: standard output cannot be written ({error.strerror})")
        return NO_NUMBERS
    except (click.exceptions.Abort, KeyboardInterrupt):  # before or after a command, which handles its own
        return INTERRUPTED


_SELDOM = 200_000  # objects until the next garbage collection: those of a trace are many, and form no cycles


def program() -> NoReturn:
    """Run one command and end the process at once: taking a large heap apart piece by piece is a tenth of `analyze`."""
    gc.set_threshold(_SELDOM)
    _without_idle_threads(sys.argv[1:2])
    status = main()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None: it was closed before the start
                stream.flush()
    except (OSError, ValueError):
        sys.exit(status)
    if threading.active_count() > 1:  # they may have work left
        sys.exit(status)
    atexit._run_exitfuncs()
    os._exit(status)


def _without_idle_threads(command: list[str]) -> None:
    """Keep numpy from starting the threads of its linear algebra, which the analysis has no use for.

    Starting them takes a fifth of the CPU time of a short command. Commands that start other programs are left as they
    are, because those inherit the setting.
    """
    if any(COMMANDS[name][0].startswith("rankscope.analysis.") for name in command if name in COMMANDS):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


if __name__ == "__main__":
    program()
