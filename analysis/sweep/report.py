"""`rankscope report SWEEP`: turns the points of a sweep into the scaling report.

Writes summary.json, report.md, report.html (one file, opens offline), tables as Parquet and CSV, figures as PNG.
"""

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from rankscope.analysis.core.json import Json
from rankscope.analysis.core.png import png
from rankscope.analysis.show import pages
from rankscope.analysis.sweep import latency
from rankscope.analysis.sweep.points import Point
from rankscope.analysis.sweep.scaling import Measured, advice, efficiencies, interval, waterfalls
from rankscope.analysis.sweep.words import headline
from rankscope.conf.files import replacing, write_json, write_parquet, write_text
from rankscope.conf.plain_text import cell

CAPTIONS = {
    "efficiency": "Scaling efficiency over ranks, with 95 % intervals and the ideal line",
    "throughput": "Throughput per rank over the batch per rank",
    "breakdown": "Where each point's step goes",
    "waterfall": "From the ideal step to the measured one, for the points with the largest loss",
    "latency": "Throughput over the latency of a batch; ring: the knee",
    "step_time": "Step time over ranks and batch",
}


def summarise_sweep(points: Sequence[Point], target: float) -> Json:
    """Return the report as plain values: points, efficiencies, waterfalls, advice, and warnings about gaps."""
    measured = [point.measured for point in points if point.measured is not None]
    answers = latency_rows(points)
    by_id = {item.id: item for item in measured}
    labels = {point.id: point.label for point in points}
    efficiency = [
        msgspec.structs.asdict(item)
        | {"world_size": by_id[item.id].world_size, "rank_batch": by_id[item.id].rank_batch, "label": labels[item.id]}
        for item in efficiencies(measured)
    ]
    falls = [
        msgspec.structs.asdict(fall) | {"label": labels[fall.id], "explained": fall.explained}
        for fall in waterfalls(measured)
    ]
    return {
        "schema": 1,
        "points": _rows(points, {row.id: row.samples_per_s for row in answers}),
        "efficiency": efficiency,
        "waterfalls": falls,
        "latency": [msgspec.structs.asdict(row) for row in answers],
        "headline": headline(efficiency, falls),
        "advice": [*advice(trained(points), target), *latency.advice(answers)],
        "warnings": _notices(points, efficiency),
    }


def trained(points: Sequence[Point]) -> list[Measured]:
    """Return the points whose steps scale with ranks: all except those that measure the latency of one replica."""
    return [p.measured for p in points if p.measured and p.config and p.config.mode != "inference"]


def latency_rows(points: Sequence[Point]) -> list[latency.Latency]:
    """Return the latency curves of a sweep's inference points; empty if it has none."""
    return latency.curves([p.measured for p in points if p.measured and p.config and p.config.mode == "inference"])


def _rows(points: Sequence[Point], rates: dict[str, float]) -> list[Json]:
    """Return a row per point. The job is null if all points are of one job.

    `rates` are the samples per second that a latency curve has of a point: a report has one number for each.
    """
    rows = [{**_row(point), "job": point.job} for point in points]
    return [row | {"samples_per_s": rates.get(row["id"], row["samples_per_s"])} for row in rows]


def _row(point: Point) -> Json:
    measured, config, summary = point.measured, point.config, point.summary or {}
    rate, overhead = summary.get("throughput") or {}, summary.get("profiler_overhead") or {}
    known = None if measured is None else measured.steps_ms
    return {
        "id": point.id,
        "overrides": " ".join(item for item in point.overrides if not item.startswith("runs_dir=")),
        "status": point.status,
        "baseline": point.baseline,
        "failure": point.failure,
        "model": None if config is None else f"{config.model.name}-{config.model.size}",
        "precision": None if config is None else config.precision.name,
        "world_size": None if config is None else config.world_size,
        "rank_batch": point.rank_batch,
        "ddp": None if config is None else ("yes" if config.ddp.enabled else "no"),
        "gpu": point.gpu,
        "repeats": len(known or []),
        "step_ms": None if measured is None else measured.step_ms,
        "step_interval": None if known is None else interval(lambda median: median, known),
        "samples_per_s": None if measured is None else measured.samples_per_s,
        "mfu": rate.get("mfu"),
        "memory_peak_bytes": point.memory_peak_bytes,
        "overhead": overhead.get("torch"),
        "verdict": (summary.get("stragglers") or {}).get("verdict"),
    }


def _notices(points: Sequence[Point], efficiency: Sequence[Json]) -> list[Json]:
    notices: list[Json] = []
    for kind in ("weak", "strong"):
        without = [item["label"] for item in efficiency if item[kind] is None]
        if without:
            text = f"no {kind} efficiency for {'; '.join(without)}: the sweep has no one-rank baseline with that batch"
            notices.append({"kind": "no_baseline", "for": kind, "points": without, "message": text})
    for point in points:
        if point.status != "completed":
            text = f"{' '.join(point.overrides)}: {point.status}" + (f" ({point.failure})" if point.failure else "")
            notices.append({"kind": "point_failed", "point": point.id, "message": text})
    return notices


def drawings(points: Sequence[Point]) -> dict[str, bytes]:
    """Return every figure for which the points have data, as PNG."""
    from rankscope.analysis.sweep import figures

    measured = [point.measured for point in points if point.measured is not None]
    training = [point for point in points if point.measured and point.config and point.config.mode != "inference"]
    found = figures.figures(training, efficiencies(measured), waterfalls(measured), latency_rows(points))
    return {name: png(figure) for name, figure in found.items()}


def write_report(summary: Json, points: Sequence[Point], folder: Path, title: str) -> None:
    """Write every file of the report into `folder`."""
    drawn = drawings(points)
    for part in ("tables", "figures"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for name, image in drawn.items():
        with replacing(folder / "figures" / f"{name}.png") as temporary:
            temporary.write_bytes(image)
    _write_tables(summary, folder / "tables")
    write_text(folder / "report.md", render("sweep.md.jinja", summary, title))
    images = {name: base64.b64encode(image).decode() for name, image in drawn.items()}
    write_text(folder / "report.html", render("sweep.html.jinja", summary, title, images, _links(points, folder)))
    write_json(folder / "summary.json", summary)


def _write_tables(summary: Json, folder: Path) -> None:
    import pandas as pd
    import pyarrow as pa

    for name in ("points", "efficiency", "waterfalls", "latency"):
        frame = pd.json_normalize(summary[name], sep=".")
        if frame.empty:
            continue
        write_parquet(folder / f"{name}.parquet", pa.Table.from_pandas(frame))
        with replacing(folder / f"{name}.csv") as temporary:
            frame.map(lambda value: cell(value) if isinstance(value, str) else value).to_csv(temporary, index=False)


def _links(points: Sequence[Point], folder: Path) -> dict[str, str]:
    """Return the address of each point's own page, relative to the report's folder, for the points that have one."""
    pages_of = {point.id: point.run_dir.analysis / "report.html" for point in points if point.run_dir is not None}
    return {
        name: quote(os.path.relpath(page.absolute(), folder.absolute()))
        for name, page in pages_of.items()
        if page.exists()
    }


def render(
    template: str,
    summary: Json,
    title: str,
    images: dict[str, str] | None = None,
    links: dict[str, str] | None = None,
) -> str:
    """Return a report as text. In HTML, every name that comes from a file is escaped."""
    losses: list[str] = []
    for fall in summary["waterfalls"]:
        losses += [name for name in fall["losses_ms"] if name not in losses]
    return pages.render(
        template,
        title=title,
        points=summary["points"],
        efficiency=summary["efficiency"],
        waterfalls=summary["waterfalls"],
        losses=losses,
        latency=summary["latency"],
        several_jobs=any(point["job"] for point in summary["points"]),
        headline=summary["headline"],
        advice=summary["advice"],
        notices=[notice["message"] for notice in summary["warnings"]],
        figures=images or {},
        links=links or {},
        captions=CAPTIONS,
    )
