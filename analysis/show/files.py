"""Writes the reports, tables and figures of an analysis with traces."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rankscope.analysis.core.json import Json
from rankscope.analysis.core.png import png
from rankscope.analysis.core.table import Table
from rankscope.analysis.read.run_settings import config_of
from rankscope.analysis.result import Analysis
from rankscope.analysis.show.html import report_html
from rankscope.analysis.show.markdown import report
from rankscope.analysis.show.tables import tables
from rankscope.conf.files import replacing, write_parquet, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(analysis: Analysis, summary: Json, folder: Path, name: str) -> None:
    """Write everything to `folder`; `name` is that of the recording."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tables").mkdir(exist_ok=True)
    made = tables(analysis)
    for part, table in made.items():
        write_parquet(folder / "tables" / f"{part}.parquet", table.to_arrow())
    write_text(folder / "report.md", report(summary, analysis.run_dir))
    if any(data.span is not None for data in analysis.ranks):
        write_text(folder / "report.html", report_html(summary, analysis, name, made))
    if "roofline" in made:
        _draw_roofline(analysis, made["roofline"], folder / "figures" / "roofline.png")
    if "memory" in made:
        from rankscope.analysis.tables import memory_timeline

        starts = analysis.step_table["start_ns"][analysis.step_table["rank"] == analysis.ranks[0].rank]
        _draw(memory_timeline.figure(made["memory"], starts), folder / "figures" / "memory.png")


def _draw(figure: "Figure", path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(png(figure))


def _draw_roofline(analysis: Analysis, table: Table, path: Path) -> None:
    from rankscope.analysis.tables.roofline import figure, peaks

    config = None if analysis.run_dir is None else config_of(analysis.run_dir)
    if config is None or not np.isfinite(table["intensity"]).any():
        return
    _draw(figure(table, *peaks(config, analysis.ceilings)), path)
