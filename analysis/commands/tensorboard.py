"""`rankscope tensorboard PATH`: a run or a sweep as a log folder for TensorBoard: scalars, figures, hparams.

Each point is a run in TensorBoard. Its steps are those of the passes; times are ms.
"""

from io import BytesIO
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tensorboardX import SummaryWriter
from tensorboardX.summary import hparams

from rankscope.analysis.commands.common import run_command
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.progress import Steps
from rankscope.analysis.core.units import mean_of
from rankscope.analysis.measure.breakdown import PARTS
from rankscope.analysis.measure.step_metrics import summarise_rank
from rankscope.analysis.options import Options
from rankscope.analysis.pipeline import load
from rankscope.analysis.result import Analysis
from rankscope.analysis.show.summary import summarise
from rankscope.analysis.show.words import verdict_sentence
from rankscope.analysis.sweep import figures
from rankscope.analysis.sweep.job_names import flattened
from rankscope.analysis.sweep.points import Point, run_point, sweep_points
from rankscope.analysis.sweep.report import drawings
from rankscope.analysis.tables.calls_and_steps import steps
from rankscope.conf import RunDir
from rankscope.conf.contract import OK, StepColumn
from rankscope.conf.sweep_dir import SweepDir

_PLAIN: dict[StepColumn, str] = {
    "device_ns": "step_ms",
    "host_ns": "host_step_ms",
    "data_wait_ns": "data_wait_ms",
    "loss": "loss",
}
_SWEEP = "sweep"  # the folder of what belongs to all points


@click.command("rankscope tensorboard")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Log folder (default: tensorboard/ in its analysis/).")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def tensorboard(path: Path, out: Path | None, quiet: bool) -> int:
    """Write a log folder that TensorBoard shows: scalars by step and rank, figures, settings against results.

    PATH: a run folder, or a folder that `rankscope run -m` made.
    """
    is_sweep = SweepDir(path).record.exists()
    points = sweep_points(SweepDir(path)) if is_sweep else [run_point(RunDir(path))]
    folder = out or (SweepDir(path).analysis if is_sweep else RunDir(path).analysis) / "tensorboard"
    with Steps(shown=not quiet) as progress:
        written = 0
        for point in points:
            if point.run_dir is not None and point.config is not None:
                progress.next(f"writing {point.id}")
                written += write_point(point, folder / point.id)
        if not written:
            raise AnalysisError(f"{path}: no step was recorded in it; see its run.json and logs")
        if is_sweep:
            progress.next("drawing figures")
            _sweep(points, folder / _SWEEP)
    if not quiet:
        click.echo(f"tensorboard --logdir {folder}")
    return OK


def write_point(point: Point, folder: Path) -> int:
    """Write one point; returns how many scalars it has."""
    assert point.run_dir is not None
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    try:
        analysis: Analysis | None = load(point.run_dir.path, options=Options())
    except AnalysisError:
        analysis = None  # a plain pass alone
    with SummaryWriter(str(folder)) as writer:
        count = _plain(writer, point.run_dir)
        if analysis is not None:
            count += _traced(writer, analysis)
            _picture(writer, analysis, point.id)
        settings = {key: _simple(value) for key, value in _settings(point).items()}
        _hparams(writer, settings, _results(point, analysis))
    return count


def _hparams(writer: SummaryWriter, settings: dict[str, Any], results: dict[str, float]) -> None:
    """Write settings and results into the point's own file; `add_hparams` would make a run of its own for them."""
    for record in hparams(settings, results):
        writer.file_writer.add_summary(record)
    for name, value in results.items():
        writer.add_scalar(name, value)


def _settings(point: Point) -> dict[str, Any]:
    assert point.config is not None
    found = flattened(msgspec.to_builtins(point.config))
    return {key: value for key, value in found.items() if not key.startswith(("run_dir", "runs_dir", "name"))}


def _simple(value: Any) -> bool | str | float | int:
    return value if isinstance(value, bool | str | float | int) else str(value)


def _results(point: Point, analysis: Analysis | None) -> dict[str, float]:
    """Return what settings are compared by; unknown values are left out."""
    measured = point.measured
    found: dict[str, float | None] = {
        "result/step_ms": None if measured is None else measured.step_ms,
        "result/samples_per_s": None if measured is None else measured.samples_per_s,
    }
    if analysis is not None:
        summary = summarise(analysis)
        found["result/mfu"] = (summary["throughput"] or {}).get("mfu")
        found["result/lateness_ms"] = summary["stragglers"]["lateness_ms"]
        for part in PARTS:
            values = [row["breakdown_ms"][part] for row in summary["per_rank"]]
            known = [value for value in values if value is not None]
            found[f"result/{part}_ms"] = float(np.mean(known)) if known and len(known) == len(values) else None
    return {name: float(value) for name, value in found.items() if value is not None}


def _plain(writer: SummaryWriter, run_dir: RunDir) -> int:
    """Write the steps of the plain pass of every rank, warm-up included."""
    count = 0
    for rank_dir in run_dir.for_pass("plain").ranks():
        try:
            table = pq.read_table(rank_dir.steps)
        except (OSError, pa.ArrowInvalid):
            continue
        for column, name in _PLAIN.items():
            if column not in table.column_names:
                continue
            scale = 1e-6 if column.endswith("_ns") else 1.0
            for step, value in zip(table["step"].to_pylist(), table[column].to_pylist(), strict=True):
                if value is not None:
                    writer.add_scalar(f"plain_{name}/rank_{rank_dir.rank}", value * scale, step)
                    count += 1
    return count


def _traced(writer: SummaryWriter, analysis: Analysis) -> int:
    """Write the step metrics, the parts and the lateness of every analysed step and rank; return how many scalars."""
    table = steps(analysis)
    table = table.take(table["analysed"])
    by_rank = {data.rank: data for data in analysis.ranks}
    count = 0
    for number in range(len(table)):
        row = table.take(np.array([number]))
        step, rank = int(row["step"][0]), int(row["rank"][0])
        data = by_rank[rank]
        values = summarise_rank(row, on_device=data.mode == "device", sees_communication=data.sees_communication)
        values |= {f"{part}_ms": mean_of(row[f"{part}_ns"]) for part in (*PARTS, "lateness")}
        for name, value in values.items():
            if value is not None:
                writer.add_scalar(f"traced_{name}/rank_{rank}", value, step)
                count += 1
    return count


def _picture(writer: SummaryWriter, analysis: Analysis, name: str) -> None:
    from rankscope.analysis.show.timeline.build import build
    from rankscope.analysis.show.timeline.figure import figure

    timeline = build(analysis, name)
    step = timeline.typical_step()
    drawn = figures.png(figure([timeline], step, [verdict_sentence(summarise(analysis))]))
    writer.add_image("timeline", _pixels(drawn), max(step, 0), dataformats="HWC")


def _pixels(image: bytes) -> np.ndarray[Any, Any]:
    from matplotlib.image import imread

    return np.asarray(imread(BytesIO(image))[..., :3] * 255).astype(np.uint8)


def _sweep(points: list[Point], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    with SummaryWriter(str(folder)) as writer:
        for name, image in drawings(points).items():
            writer.add_image(name, _pixels(image), 0, dataformats="HWC")


def main(argv: list[str]) -> int:
    """Run `rankscope tensorboard`; returns the exit status."""
    return run_command(tensorboard, argv)
