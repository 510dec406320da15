"""Draws the timeline of one step: one band per rank on one clock, collectives joined, the late rank marked.

Each pixel column of a band shows the shares of the time it covers, so short events stay visible and do not look long.
Input: one `Timeline`, or two to compare. Output: a matplotlib figure.
"""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import numpy as np
from matplotlib import colors, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from rankscope.analysis.core.table import Column, Table
from rankscope.analysis.show.colours import COLOURS
from rankscope.analysis.show.timeline.build import RankView, Timeline
from rankscope.analysis.show.timeline.codes import NAMES, STRIP, strip_codes
from rankscope.analysis.show.timeline.sentences import TITLES, step_sentence, what_to_see
from rankscope.analysis.show.timeline.tiles import shares
from rankscope.conf.plain_text import drawn_text

_BINS = 1400
_HEADLINE = 105  # characters in a line of the headline
_PIXELS = 24  # rows of pixels in a band
_FEW = 8  # with at most this many ranks, each shows its ranges, and all collectives are joined
_JOINED = 60  # with more collectives, only the one with the late rank is joined
_LATE = "#B00020"
_EMPTY = len(NAMES)
_PALETTE = np.array([colors.to_rgb(COLOURS[name]) for name in NAMES] + [(1.0, 1.0, 1.0)])
_STRIP_PALETTE = np.array([colors.to_rgb(COLOURS[name]) for name in STRIP] + [(1.0, 1.0, 1.0)])


def figure(timelines: Sequence[Timeline], step: int, headlines: Sequence[str]) -> Figure:
    """Return the picture of a step. Two recordings are drawn one below the other, each from its own start."""
    rows = [len(timeline.rows) + bool(timeline.folded) for timeline in timelines]
    heights = [_height(count) for count in rows]
    names = [f"{timeline.name}: " if len(timelines) > 1 else "" for timeline in timelines]
    titles = [fill(drawn_text(name + headline), _HEADLINE) for name, headline in zip(names, headlines, strict=True)]
    more = 0.22 * sum(title.count("\n") for title in titles)
    drawn = Figure(figsize=(13, sum(heights) + 1.15 * len(timelines) + 0.9 + more), layout="constrained")
    grid = drawn.add_gridspec(len(timelines), 2, width_ratios=[1, 0.13], height_ratios=heights, wspace=0.02)
    longest = max(end - start for start, end in (timeline.window(step) for timeline in timelines)) * 1e-6
    for index, (timeline, title) in enumerate(zip(timelines, titles, strict=True)):
        axes = drawn.add_subplot(grid[index, 0])
        _Panel(timeline, step, axes).draw(longest)
        if timeline.lateness.get(step):
            _lateness(timeline, step, drawn.add_subplot(grid[index, 1], sharey=axes))
        text = fill(drawn_text(step_sentence(timeline, step)), 150)
        axes.set_title(text, loc="left", fontsize=10, color="#333333")
        axes.annotate(
            title,
            (0, 1), (0, 22 + 12 * text.count("\n")),
            xycoords="axes fraction", textcoords="offset points", fontsize=13, fontweight="bold",
        )  # fmt: skip
    _legend(drawn, timelines, step)
    return drawn


def save(drawn: Figure, path: Path, kind: str) -> None:
    """Write a figure as PNG or SVG. Text in SVG stays text, and the same figure gives the same bytes."""
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "rankscope"}):
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        drawn.savefig(path, format=kind, dpi=110, metadata=metadata)


def _height(rows: int) -> float:
    return 0.4 + rows * (0.85 if rows <= _FEW else max(0.17, 0.6 * _FEW / rows))


class _Panel:
    """One recording's step in one pair of axes; y counts rows from the top, x is ms since the step began."""

    def __init__(self, timeline: Timeline, step: int, axes: Axes) -> None:
        self._timeline, self._step, self._axes = timeline, step, axes
        self._start, self._end = timeline.window(step)
        self._rows = timeline.rows
        self._few = len(self._rows) + bool(timeline.folded) <= _FEW
        places = np.linspace(0, self._end - self._start, _BINS + 1).astype(np.int64)  # exact, unlike ns since 1970
        self._edges = self._start + np.unique(places)
        # top and bottom of the band and of the strip of communication within a row
        self._band, self._strip = ((0.27, 0.70), (0.73, 0.93)) if self._few else ((0.08, 0.62), (0.66, 0.92))

    def draw(self, longest_ms: float) -> None:
        axes, timeline = self._axes, self._timeline
        mark = timeline.marks.get(self._step)
        late = mark.rank if mark is not None and mark.late else None
        labels = []
        for row, view in enumerate(self._rows):
            self._bands(row, [view])
            labels.append(f"rank {view.rank}" + (" is late" if view.rank == late else ""))
            if view.rank == late:
                axes.axhspan(row, row + 1, color="#FBE3E6", zorder=0)
        if timeline.folded:
            self._bands(len(self._rows), timeline.folded)
            labels.append(f"mean of {len(timeline.folded)} others")
        self._ranges()
        self._joins()
        self._mark()
        axes.set_xlim(0, longest_ms)
        axes.set_ylim(len(labels), 0 if self._few else -1.1)
        axes.set_yticks(np.arange(len(labels)) + 0.5, labels, fontsize=10 if len(labels) <= 24 else 6.5)
        for tick, view in zip(axes.get_yticklabels(), self._rows, strict=False):
            if view.rank == late:
                tick.set(color=_LATE, fontweight="bold")
        axes.set_xlabel("ms since the step began on the device" if timeline.device else "ms since the step began")
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)

    def _ms(self, time: int | Column) -> float:
        return (time - self._start) * 1e-6  # type: ignore[return-value]

    def _bands(self, row: int, views: Sequence[RankView]) -> None:
        """Draw the parts and the communication of one rank, or the mean of several."""
        parts = [self._shares(view.parts.take(view.parts["step"] == self._step), len(NAMES)) for view in views]
        strip = [self._shares(view.comm.with_columns(part=strip_codes(view.comm)), len(STRIP)) for view in views]
        for place, found, palette in ((self._band, parts, _PALETTE), (self._strip, strip, _STRIP_PALETTE)):
            level = np.cumsum(np.mean(found, axis=0), axis=0)
            height = (np.arange(_PIXELS) + 0.5) / _PIXELS
            code = (height[:, None, None] > level[None, :, :] + 1e-9).sum(axis=1)
            image = palette[np.minimum(code, len(palette) - 1)][::-1]
            extent = (0, self._ms(self._end), row + place[1], row + place[0])
            self._axes.imshow(image, extent=extent, aspect="auto", interpolation="nearest", zorder=2)

    def _shares(self, table: Table, codes: int) -> Column:
        return shares(table["start"], table["end"], table["part"], codes, self._edges)

    def _ranges(self) -> None:
        """Draw the ranges above each rank, or with many ranks once at the top, those of the middle rank."""
        if not self._rows:
            return
        shown = list(enumerate(self._rows)) if self._few else [(-1, self._rows[len(self._rows) // 2])]
        width = self._ms(self._end)
        for row, view in shown:
            top, bottom = (row + 0.04, row + 0.24) if self._few else (-1.0, -0.1)
            inside = (view.ranges["end"] > self._start) & (view.ranges["start"] < self._end)
            table = view.ranges.take(inside)
            for start, end, name in zip(table["start"], table["end"], table.texts("name"), strict=True):
                left, right = self._ms(max(start, self._start)), self._ms(min(end, self._end))
                self._axes.fill_between(
                    [left, right], top, bottom, facecolor="#EEEEEE", edgecolor="#888888", linewidth=0.6, zorder=2
                )
                if right - left > width * 0.0063 * len(str(name)):
                    self._axes.text(
                        (left + right) / 2, (top + bottom) / 2, drawn_text(str(name)),
                        ha="center", va="center", fontsize=8, zorder=3, clip_on=True,
                    )  # fmt: skip

    def _joins(self) -> None:
        """Join the starts of each collective over the ranks: a late start shows as a kink."""
        rows = [view.calls.take((view.calls["step"] == self._step) & (view.calls["call"] >= 0)) for view in self._rows]
        mark = self._timeline.marks.get(self._step)
        starts = [dict(zip(table["call"].tolist(), table["start"].tolist(), strict=True)) for table in rows]
        calls = sorted(set().union(*starts)) if starts else []
        if not self._few or len(calls) > _JOINED:
            calls = [] if mark is None else [mark.call]
        for call in calls:
            points = [(self._ms(found[call]), row) for row, found in enumerate(starts) if call in found]
            x = [at for at, row in points for _ in (0, 1)]
            y = [row + place for _, row in points for place in self._strip]
            marked = mark is not None and call == mark.call
            width, alpha = (1.4, 0.9) if marked else (0.7, 0.45)
            self._axes.plot(x, y, color="black", linewidth=width, alpha=alpha, zorder=4, solid_joinstyle="round")

    def _mark(self) -> None:
        """Draw the lateness of the late rank as an arrow from the others' arrival to its own."""
        mark = self._timeline.marks.get(self._step)
        row = next((row for row, view in enumerate(self._rows) if mark and view.rank == mark.rank), None)
        if mark is None or not mark.late or row is None:
            return
        y = row + sum(self._strip) / 2
        left, right = self._ms(mark.others), self._ms(mark.start)
        arrow = {
            "arrowstyle": "<|-|>",
            "color": _LATE,
            "linewidth": 2,
            "shrinkA": 0,
            "shrinkB": 0,
            "mutation_scale": 12,
        }
        self._axes.annotate("", (left, y), (right, y), arrowprops=arrow, zorder=6)
        why = f": {mark.cause}" if mark.cause else ""
        width = self._ms(self._end)
        if right - left > 0.25 * width:
            place, align = (left + right) / 2, "center"
        else:
            place, align = (left, "right") if right > 0.8 * width else (right, "left")
        self._axes.annotate(
            f"{mark.lateness_ns * 1e-6:.2f} ms late{why}",
            (place, y), ({"center": 0, "right": -6, "left": 6}[align], 0),
            textcoords="offset points", ha=align, va="center",
            fontsize=10, fontweight="bold", color=_LATE, zorder=7,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.85},
        )  # fmt: skip


def _lateness(timeline: Timeline, step: int, axes: Axes) -> None:
    """Draw each rank's lateness as a bar next to its band, and the threshold as a line."""
    found = timeline.lateness.get(step, {})
    mark = timeline.marks.get(step)
    values = [found.get(view.rank, 0) * 1e-6 for view in timeline.rows]
    late = [mark is not None and mark.late and view.rank == mark.rank for view in timeline.rows]
    axes.barh(np.arange(len(values)) + 0.5, values, height=0.5, color=[_LATE if item else "#555555" for item in late])
    limit = timeline.threshold_ns * 1e-6
    axes.set_xlim(0, max([*values, limit]) * 1.25 or 1)
    axes.axvline(limit, color="black", linewidth=0.9, linestyle=":")
    axes.set_title(f"lateness, ms\n(counts from {limit:.2g})", fontsize=8, color="#333333")
    axes.tick_params(axis="y", left=False, labelleft=False)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(drawn: Figure, timelines: Sequence[Timeline], step: int) -> None:
    present = {name for timeline in timelines for name in what_to_see(timeline, step)}
    entries = [Patch(color=COLOURS[name], label=title) for name, title in TITLES.items() if name in present]
    hidden = any(view.comm["hidden"].any() for timeline in timelines for view in timeline.views if len(view.comm))
    if hidden:
        entries += [
            Patch(color=COLOURS["hidden_transfer"], label="transfer hidden by compute"),
            Patch(color=COLOURS["hidden_wait"], label="wait hidden by compute"),
        ]
    drawn.legend(handles=entries, loc="outside lower left", ncols=len(entries), fontsize=9, frameon=False)
