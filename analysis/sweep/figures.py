"""Draws the figures of a sweep from its points, with matplotlib. The colours suit colour-blind readers."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from rankscope.analysis.show.colours import COLOURS
from rankscope.analysis.sweep.latency import Latency
from rankscope.analysis.sweep.points import Point
from rankscope.analysis.sweep.scaling import PARTS, Efficiency, Waterfall
from rankscope.conf.plain_text import drawn_text

_LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def figures(
    points: Sequence[Point], found: Sequence[Efficiency], falls: Sequence[Waterfall], answers: Sequence[Latency] = ()
) -> dict[str, Figure]:
    """Return every figure for which these points have data, by name."""
    draws: dict[str, Callable[[], Figure | None]] = {
        "efficiency": lambda: _efficiency(points, found),
        "throughput": lambda: _throughput(points),
        "breakdown": lambda: _breakdown(points),
        "waterfall": lambda: _waterfall(points, falls),
        "step_time": lambda: _step_time(points),
        "latency": lambda: _latency(answers),
    }
    drawn = {name: draw() for name, draw in draws.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _new(title: str, width: float = 7.0, height: float = 3.8) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _efficiency(points: Sequence[Point], found: Sequence[Efficiency]) -> Figure | None:
    by_id = {point.id: point.measured for point in points if point.measured is not None}
    jobs = {point.id: _job(point) for point in points}
    series: dict[str, list[tuple[int, float, tuple[float, float] | None]]] = {}
    for item in found:
        measured = by_id[item.id]
        if item.weak is not None:
            name = f"{jobs[item.id]}weak, batch {measured.rank_batch} per rank"
            series.setdefault(name, []).append((measured.world_size, item.weak, item.weak_interval))
        if item.strong is not None:
            name = f"{jobs[item.id]}strong, batch {measured.global_batch} in total"
            series.setdefault(name, []).append((measured.world_size, item.strong, item.strong_interval))
    if not series:
        return None
    figure, axes = _new("Scaling efficiency against one rank without DDP")
    for (name, rows), colour in zip(series.items(), _LINES * 4, strict=False):
        rows = [(1, 1.0, None), *sorted(rows, key=lambda row: row[0])]
        ranks, values = [row[0] for row in rows], [row[1] for row in rows]
        axes.plot(ranks, values, "o-", color=colour, label=drawn_text(name), markersize=4)
        for rank, _, between in rows:
            if between is not None:
                axes.plot([rank, rank], between, "-", color=colour, linewidth=4, alpha=0.35)
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":", label="ideal")
    axes.set_xticks(sorted({row[0] for rows in series.values() for row in rows} | {1}))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("ranks")
    axes.legend(fontsize=8, frameon=False)
    return figure


def _throughput(points: Sequence[Point]) -> Figure | None:
    series: dict[str, list[tuple[int, float]]] = {}
    for point in points:
        if point.measured is not None:
            ranks = point.measured.world_size
            name = f"{_job(point)}{ranks} rank{'s' * (ranks > 1)}" + ("" if point.measured.ddp else ", no DDP")
            rate = point.measured.samples_per_s / point.measured.world_size
            series.setdefault(name, []).append((point.measured.rank_batch, rate))
    batches = sorted({row[0] for rows in series.values() for row in rows})
    if len(batches) < 2:
        return None
    figure, axes = _new("Throughput per rank over the batch per rank (plain pass)")
    for (name, rows), colour in zip(sorted(series.items()), _LINES * 4, strict=False):
        rows.sort()
        axes.plot(
            [row[0] for row in rows], [row[1] for row in rows], "o-", color=colour, label=drawn_text(name), markersize=4
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()
    axes.set_xlabel("batch per rank")
    axes.set_ylabel("samples/s per rank")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False)
    return figure


def _breakdown(points: Sequence[Point]) -> Figure | None:
    shown = [p for p in points if p.measured is not None and p.measured.parts_ms is not None]
    if not shown:
        return None
    figure, axes = _new("Where a step's time goes (traced shares of the plain step)", height=1.2 + 0.32 * len(shown))
    left = np.zeros(len(shown))
    names = [drawn_text(point.label) for point in shown]
    for part in PARTS:
        lengths = []
        for point in shown:
            assert point.measured is not None and point.measured.parts_ms is not None
            total = sum(value or 0 for value in point.measured.parts_ms.values()) or 1
            lengths.append((point.measured.parts_ms[part] or 0) / total * point.measured.step_ms)
        axes.barh(names, lengths, left=left, color=COLOURS[part], label=part.replace("_", " "), height=0.7)
        left += np.array(lengths)
    axes.invert_yaxis()
    axes.set_xlabel("ms per step")
    axes.legend(fontsize=8, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.25))
    return figure


def _waterfall(points: Sequence[Point], falls: Sequence[Waterfall]) -> Figure | None:
    if not falls:
        return None
    labels = {point.id: drawn_text(point.label) for point in points}
    largest = sorted(falls, key=lambda fall: fall.measured_ms - fall.ideal_ms)[-4:]
    figure = Figure(figsize=(7.0, 2.6 * len(largest)), layout="constrained")
    for index, fall in enumerate(largest):
        axes = figure.add_subplot(len(largest), 1, index + 1)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(f"{labels[fall.id]}, {fall.kind} scaling: from the ideal step", loc="left", fontsize=10)
        at = fall.ideal_ms
        axes.barh("ideal", at, color="#BBBBBB")
        for name, loss in {**fall.losses_ms, "rest": fall.rest_ms}.items():
            axes.barh(name.replace("_", " "), loss, left=at, color=COLOURS[name])
            at += loss
        axes.barh("measured", fall.measured_ms, color="#555555")
        axes.invert_yaxis()
        axes.tick_params(labelsize=8)
        axes.set_xlabel("ms per step", fontsize=8)
    return figure


def _latency(rows: Sequence[Latency]) -> Figure | None:
    known = [row for row in rows if row.p50_ms is not None]
    if not known:
        return None
    figure, axes = _new("Throughput over latency of one replica (p50; line to p95; number: batch)")
    best = max(known, key=lambda row: row.samples_per_s).curve
    for name, colour in zip(dict.fromkeys(row.curve for row in known), _LINES * 4, strict=False):
        curve = [row for row in known if row.curve == name]
        offset = (-14, 5) if name == best else (7, -10)  # points of two curves often lie close to each other
        times, rates = [row.p50_ms or 0 for row in curve], [row.samples_per_s for row in curve]
        axes.plot(times, rates, "o-", color=colour, label=drawn_text(name), markersize=4)
        for row, time, rate in zip(curve, times, rates, strict=True):
            axes.annotate(str(row.batch), (time, rate), offset, textcoords="offset points", fontsize=7, color=colour)
            if row.p95_ms is not None:
                axes.plot([time, row.p95_ms], [rate, rate], color=colour, linewidth=1, alpha=0.5)
            if row.knee:
                axes.plot(time, rate, "o", color=colour, markersize=11, fillstyle="none")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("latency of a batch, ms")
    axes.set_ylabel("samples/s")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False)
    return figure


def _job(point: Point) -> str:
    return f"{point.job}: " if point.job else ""


def _step_time(points: Sequence[Point]) -> Figure | None:
    jobs: dict[str, dict[tuple[int, int], float]] = {}
    for point in points:
        if point.measured is not None and (point.measured.ddp or point.measured.world_size == 1):
            cells = jobs.setdefault(_job(point), {})
            cells[point.measured.world_size, point.measured.rank_batch] = point.measured.step_ms
    tables = {
        job: cells for job, cells in jobs.items() if all(len({key[axis] for key in cells}) > 1 for axis in (0, 1))
    }
    if not tables:
        return None
    figure = Figure(figsize=(7.0, 0.6 + 3.2 * len(tables)), layout="constrained")
    for index, (job, cells) in enumerate(tables.items()):
        axes = figure.add_subplot(len(tables), 1, index + 1)
        axes.set_title(drawn_text(job) + "step time (ms) over ranks and batch per rank", loc="left", fontsize=11)
        _heat_map(axes, cells)
    return figure


def _heat_map(axes: Axes, cells: dict[tuple[int, int], float]) -> None:
    ranks, batches = sorted({key[0] for key in cells}), sorted({key[1] for key in cells})
    table = np.array([[cells.get((rank, batch), np.nan) for batch in batches] for rank in ranks])
    axes.imshow(table, cmap="cividis", aspect="auto")
    middle = float(np.nanmean(table))
    for (row, column), value in np.ndenumerate(table):
        text = "-" if np.isnan(value) else f"{value:.1f}"
        axes.text(column, row, text, ha="center", va="center", color="white" if value < middle else "black")
    axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    axes.set_yticks(range(len(ranks)), [str(rank) for rank in ranks])
    axes.set_xlabel("batch per rank")
    axes.set_ylabel("ranks")
    axes.spines[["top", "right"]].set_visible(False)
