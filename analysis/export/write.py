"""Writes a run or what belongs to a complete sweep into a `Sink`."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.png import png
from rankscope.analysis.export.scalars import plain_scalars, results, traced_scalars
from rankscope.analysis.export.sink import Setting, Sink
from rankscope.analysis.options import Options
from rankscope.analysis.pipeline import load
from rankscope.analysis.result import Analysis
from rankscope.analysis.show.summary import summarise
from rankscope.analysis.show.timeline.build import build
from rankscope.analysis.show.timeline.figure import figure
from rankscope.analysis.show.words import verdict_sentence
from rankscope.analysis.sweep.job_names import flattened
from rankscope.analysis.sweep.points import Point
from rankscope.analysis.sweep.report import drawings
from rankscope.conf import RunConfig
from rankscope.conf.plain_text import visible

_NOT_SETTINGS = ("run_dir", "runs_dir", "name")  # they name a run, and change nothing in it


def write_point(point: Point, sink: Sink) -> int:
    """Write the steps, the timeline, the settings and the results of a point; return how many scalars it has."""
    assert point.run_dir is not None and point.config is not None
    try:
        analysis: Analysis | None = load(point.run_dir.path, options=Options())
    except AnalysisError:
        analysis = None  # the plain pass can be exported without it
    count = 0
    for row in chain(plain_scalars(point.run_dir), () if analysis is None else traced_scalars(analysis)):
        sink.scalar(*row)
        count += 1
    if analysis is not None:
        _timeline(sink, analysis, point.id)
    sink.settings(_settings(point.config), results(point.measured, analysis))
    return count


def write_sweep(points: Sequence[Point], sink: Sink) -> None:
    """Write the figures that compare the points of a sweep."""
    for name, image in drawings(points).items():
        sink.image(name, 0, image)


def _timeline(sink: Sink, analysis: Analysis, name: str) -> None:
    timeline = build(analysis, name)
    step = timeline.typical
    drawn = figure([timeline], step, [verdict_sentence(summarise(analysis))])
    sink.image("timeline", max(step, 0), png(drawn))


def _settings(config: RunConfig) -> dict[str, Setting]:
    found = flattened(msgspec.to_builtins(config))
    return {key: _simple(value) for key, value in found.items() if not key.startswith(_NOT_SETTINGS)}


def _simple(value: Any) -> Setting:
    return value if isinstance(value, bool | float | int) else visible(str(value))
