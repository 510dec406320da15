"""`rankscope wandb PATH`: writes a run or a sweep to Weights & Biases, also offline (`WANDB_MODE=offline`)."""

from pathlib import Path

import click

from rankscope.analysis.commands.common import results_folder, run_command
from rankscope.analysis.commands.export_common import write_all
from rankscope.analysis.export.wandb import Wandb
from rankscope.conf.contract import OK


@click.command("rankscope wandb")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--project", help="Project (default: WANDB_PROJECT, otherwise wandb's own).")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for wandb's files (default: PATH's analysis/).")
@click.option("--quiet", is_flag=True, help="Print only errors.")
def wandb(path: Path, project: str | None, out: Path | None, quiet: bool) -> int:
    """Write a run to Weights & Biases: scalars per step and rank, figures, settings with results.

    PATH: a run folder, or a folder that `rankscope run -m` made: each point is a run of one group.
    """
    folder = out or results_folder(path)
    write_all(path, lambda name: Wandb(project, path.resolve().name, name, folder), quiet=quiet)
    return OK


def main(argv: list[str]) -> int:
    """Run `rankscope wandb`; returns the exit status."""
    return run_command(wandb, argv)
