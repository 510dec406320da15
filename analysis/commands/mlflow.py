"""`rankscope mlflow PATH`: writes a run or a sweep to MLflow."""

import os
from pathlib import Path

import click

from rankscope.analysis.commands.common import run_command
from rankscope.analysis.commands.export_common import write_all
from rankscope.analysis.export.mlflow import Mlflow
from rankscope.conf.contract import OK


@click.command("rankscope mlflow")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--uri", help="Tracking URI (default: MLFLOW_TRACKING_URI, otherwise MLflow's own).")
@click.option("--quiet", is_flag=True, help="Print only errors.")
def mlflow(path: Path, uri: str | None, quiet: bool) -> int:
    """Write a run to MLflow: metrics per step and rank, figures, parameters with results.

    PATH: a run folder, or a folder that `rankscope run -m` made: each point is a run.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # by default 7: two silent minutes without a server
    write_all(path, lambda name: Mlflow(uri, path.resolve().name, name), quiet=quiet)
    return OK


def main(argv: list[str]) -> int:
    """Run `rankscope mlflow`; returns the exit status."""
    return run_command(mlflow, argv)
