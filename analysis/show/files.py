"""Writes the reports, tables and figures of an analysis with traces."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rankscope.analysis.core.heap import trim
from rankscope.analysis.core.json import Json
from rankscope.analysis.core.on_disk import release
from rankscope.analysis.core.png import png
from rankscope.analysis.core.table import Table
from rankscope.analysis.read.run_settings import config_of
from rankscope.analysis.result import Analysis
from rankscope.analysis.show.markdown import report
from rankscope.analysis.show.report.page import report_html
from rankscope.analysis.show.tables import tables
from rankscope.conf.files import replacing, write_parquet, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(analysis: Analysis, summary: Json, folder: Path, name: str) -> None:
    """Write everything to `folder`; `name` is that of the recording. A run without a trace has only its page."""
    folder.mkdir(parents=True, exist_ok=True)
    if not analysis.ranks:
        write_text(folder / "report.html", report_html(summary, analysis, name, {}))
        return
    (folder / "tables").mkdir(exist_ok=True)
    made = tables(analysis)
    release()
    trim()  # Arrow and the page need some 50 MB next
    for part, table in made.items():
        write_parquet(folder / "tables" / f"{part}.parquet", table.to_arrow())
    write_text(folder / "report.md", report(summary, analysis.run_dir))
    drawn = {title: png(figure) for title, figure in _figures(analysis, made).items()}
    for title, image in drawn.items():
        (folder / "figures").mkdir(exist_ok=True)
        with replacing(folder / "figures" / f"{title.lower()}.png") as temporary:
            temporary.write_bytes(image)
    write_text(folder / "report.html", report_html(summary, analysis, name, made, drawn))


def _figures(analysis: Analysis, made: dict[str, Table]) -> "dict[str, Figure]":
    """Return the figures for which the run recorded what they need, by their titles."""
    found = {}
    config = None if analysis.run_dir is None else config_of(analysis.run_dir)
    if "memory" in made:
        from rankscope.analysis.tables import memory_timeline

        starts = analysis.step_table["start_ns"][analysis.step_table["rank"] == analysis.ranks[0].rank]
        found["Memory"] = memory_timeline.figure(made["memory"], starts)
    if "roofline" in made and config is not None and np.isfinite(made["roofline"]["intensity"]).any():
        from rankscope.analysis.tables.roofline import figure, peaks

        found["Roofline"] = figure(made["roofline"], *peaks(config, analysis.ceilings))
    return found
