"""`rankscope tensorboard PATH`: writes a run or a sweep as a log folder for TensorBoard.

Each point is a run in TensorBoard. Its steps are those of the passes; times are ms.
"""

from contextlib import closing
from pathlib import Path

import click

from rankscope.analysis.commands.common import results_folder, run_command
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.progress import Steps
from rankscope.analysis.export.tensorboard import TensorBoard
from rankscope.analysis.export.write import write_point, write_sweep
from rankscope.analysis.sweep.points import run_point, sweep_points
from rankscope.conf import RunDir
from rankscope.conf.command import say
from rankscope.conf.contract import OK
from rankscope.conf.sweep_dir import SweepDir

_SWEEP = "sweep"  # the folder of the figures of all points


@click.command("rankscope tensorboard")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Log folder (default: tensorboard/ in PATH's analysis/).")
@click.option("--quiet", is_flag=True, help="Print only errors.")
def tensorboard(path: Path, out: Path | None, quiet: bool) -> int:
    """Write a log folder for TensorBoard: scalars per step and rank, figures, settings with results.

    PATH: a run folder, or a folder that `rankscope run -m` made.
    """
    is_sweep = SweepDir(path).record.exists()
    points = sweep_points(SweepDir(path)) if is_sweep else [run_point(RunDir(path))]
    folder = out or results_folder(path) / "tensorboard"
    with Steps(shown=not quiet) as progress:
        written = 0
        for point in points:
            if point.run_dir is not None and point.config is not None:
                progress.next(f"writing {point.id}")
                with closing(TensorBoard(folder / point.id)) as sink:
                    written += write_point(point, sink)
        if not written:
            raise AnalysisError(f"{path}: no step was recorded; see its run.json and logs")
        if is_sweep:
            progress.next("drawing figures")
            with closing(TensorBoard(folder / _SWEEP)) as sink:
                write_sweep(points, sink)
    if not quiet:
        say(f"tensorboard --logdir {folder}")
    return OK


def main(argv: list[str]) -> int:
    """Run `rankscope tensorboard`; returns the exit status."""
    return run_command(tensorboard, argv)
