"""The command `rankscope`: a table from each command to its module, which is imported only if the command is used.

The table holds names instead of functions, because `launch` and `analysis` must not import each other, and the analysis
must start without torch and Hydra.
"""

import importlib
import sys
from importlib.metadata import version

# command: (module, function taking the remaining arguments and returning an exit status, one line of help)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "run": (
        "rankscope.launch.main",
        "main",
        "train on N ranks, record every rank, analyse",
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
    "timeline": (
        "rankscope.analysis.commands.timeline",
        "main",
        "draw all ranks on one clock (picture, page, Perfetto)",
    ),
    "tensorboard": (
        "rankscope.analysis.commands.tensorboard",
        "main",
        "write a run or sweep as a log folder for TensorBoard",
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

_NEEDS = {"hydra": "train", "omegaconf": "train", "psutil": "train", "tensorboardX": "tensorboard", "torch": "train"}


def main(argv: list[str] | None = None) -> int:
    """Run one command and return the exit status (0 valid, 2 no numbers, 3 partial, 1 a bug)."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"rankscope {version('rankscope')}")
        return 0
    command, *rest = arguments
    if command not in COMMANDS:
        print(f"rankscope: no command {command!r}; the commands are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    module, function, _ = COMMANDS[command]
    try:
        entry = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        extra = _NEEDS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        print(
            f"rankscope {command}: {error.name} is not installed; pip install 'rankscope[{extra}]'",
            file=sys.stderr,
        )
        return 2
    try:
        return int(entry(rest))
    except KeyboardInterrupt:  # only before or after a run, which handles its own interruption
        return 130


def _usage() -> str:
    lines = [f"  rankscope {name:<11} {text}" for name, (_, _, text) in COMMANDS.items()]
    return "\n".join(["Profiles distributed training and shows where the time of a step goes.", "", *lines])


if __name__ == "__main__":
    sys.exit(main())
