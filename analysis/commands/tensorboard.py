"""`rankscope tensorboard PATH`: writes a run or a sweep as a log folder for TensorBoard.

Each point is a run in TensorBoard. Its steps are those of the passes; times are ms.
"""

from pathlib import Path

import click

from rankscope.analysis.commands.common import results_folder, run_command
from rankscope.analysis.commands.export_common import write_all
from rankscope.analysis.export.tensorboard import TensorBoard
from rankscope.conf.command import say
from rankscope.conf.contract import OK


@click.command("rankscope tensorboard")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Log folder (default: tensorboard/ in PATH's analysis/).")
@click.option("--quiet", is_flag=True, help="Print only errors.")
def tensorboard(path: Path, out: Path | None, quiet: bool) -> int:
    """Write a log folder for TensorBoard: scalars per step and rank, figures, settings with results.

    PATH: a run folder, or a folder that `rankscope run -m` made.
    """
    folder = out or results_folder(path) / "tensorboard"
    write_all(path, lambda name: TensorBoard(folder / name), quiet=quiet)
    if not quiet:
        say(f"tensorboard --logdir {folder}")
    return OK


def main(argv: list[str]) -> int:
    """Run `rankscope tensorboard`; returns the exit status."""
    return run_command(tensorboard, argv)
