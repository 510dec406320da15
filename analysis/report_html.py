"""`report.html` of a point: one file that opens offline. `summary.json`, the analysis and its timeline in, text out."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rankscope.analysis import grouped, pages
from rankscope.analysis.breakdown import PARTS
from rankscope.analysis.ceilings import Ceilings
from rankscope.analysis.colours import COLOURS
from rankscope.analysis.names import COMPUTE, bus_factor
from rankscope.analysis.pipeline import Analysis
from rankscope.analysis.report import command
from rankscope.analysis.show import slowdown, verdict_sentence
from rankscope.analysis.table import Column
from rankscope.analysis.timeline import build
from rankscope.analysis.timeline_page import embedded
from rankscope.analysis.timeline_text import TITLES
from rankscope.conf import RunDir

_TOP = 15  # kernels and operators that are listed
_ROWS = 64  # ranks that get a row in bars and heat map; of more, the latest and the slowest
_OPERATOR = re.compile(r"\w+::\w")  # key_averages lists kernels and ranges too
_LIGHT, _DARK = np.array([255, 255, 255]), np.array([176, 0, 32])

Json = dict[str, Any]


def report_html(summary: Json, analysis: Analysis, name: str) -> str:
    """Return the report of one recording; a run folder adds how to repeat it, its settings and versions."""
    run_dir = analysis.run_dir
    timeline = build(analysis, name)
    step = timeline.typical_step()
    rows = _worth_a_row(summary)
    return pages.render(
        "report.html.jinja",
        unknown="?",
        title=name,
        s=summary,
        verdict=verdict_sentence(summary),
        rate=summary["throughput"],
        overheads=[slowdown(title, ratio) for title, ratio in _overheads(summary)],
        parts=[(part, TITLES[part], COLOURS[part]) for part in PARTS],
        bars=[_bar(row) for row in rows],
        longest=max((row["step_ms"] for row in rows if row["step_ms"] is not None), default=1) or 1,
        left_out=len(summary["per_rank"]) - len(rows),
        heat=_heat(analysis, [row["rank"] for row in rows]),
        collectives=[_against(row, analysis.ceilings) for row in summary["collectives"]],
        has_ceilings=analysis.ceilings is not None,
        kernels=top_kernels(analysis),
        operators=[] if run_dir is None else _operators(run_dir),
        notices=_by_level(summary["warnings"]),
        command=None if run_dir is None else command(run_dir),
        config=_text(run_dir.config) if run_dir else None,
        environment=_environment(run_dir) if run_dir else [],
        timeline=embedded([timeline], step, only=step),
    )


def _overheads(summary: Json) -> list[tuple[str, float]]:
    names = {"torch": "torch.profiler", "nsys": "Nsight Systems"}
    found = summary["profiler_overhead"]
    return [(title, found[name]) for name, title in names.items() if found.get(name) is not None]


def _worth_a_row(summary: Json) -> list[Json]:
    """Return the ranks that are shown one by one: all of some, of many those with the longest steps."""
    rows: list[Json] = summary["per_rank"]
    if len(rows) <= _ROWS:
        return rows
    order = sorted(rows, key=lambda row: -(row["step_ms"] or 0))[:_ROWS]
    late = summary["stragglers"]["rank"]
    chosen = {row["rank"] for row in order} | {late}
    return [row for row in rows if row["rank"] in chosen]


def _bar(row: Json) -> Json:
    """Return a stacked bar: the known parts; what communication cannot be split stands as one."""
    parts = [(part, value) for part in PARTS if (value := row["breakdown_ms"][part]) is not None]
    known = sum(value for _, value in parts)
    rest = max(0.0, (row["step_ms"] or 0) - known)
    pieces = [(COLOURS[part], TITLES[part], value) for part, value in parts]
    if rest > 1e-6:
        pieces.append((COLOURS["communication"], TITLES["communication"], rest))
    return {"rank": row["rank"], "step_ms": row["step_ms"], "pieces": pieces}


def _heat(analysis: Analysis, ranks: Sequence[int]) -> Json:
    """Return lateness of each rank in each step, with a colour from white to red; text stays readable on it."""
    late = analysis.late_table
    keys = zip(late["step"].tolist(), late["rank"].tolist(), strict=True)
    found = dict(zip(keys, late["lateness_ns"].tolist(), strict=True))
    steps = [step for step in analysis.steps_analysed if any((step, rank) in found for rank in ranks)]
    highest = max((found.get((step, rank), 0) for step in steps for rank in ranks), default=0) or 1
    rows = []
    for rank in ranks:
        cells = []
        for step in steps:
            value = found.get((step, rank))
            share = 0.0 if value is None else value / highest
            face = (_LIGHT + (_DARK - _LIGHT) * share).astype(int)
            cells.append((None if value is None else value * 1e-6, "rgb({},{},{})".format(*face), _ink(face)))
        rows.append((rank, cells))
    return {"steps": steps, "judged": set(analysis.steps_judged), "rows": rows if steps else []}


def _ink(face: Column) -> str:
    """Return the colour of letters that stands out more: white or black always has a contrast of 4.5 : 1 (WCAG)."""
    share = face / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    behind = float(linear @ [0.2126, 0.7152, 0.0722]) + 0.05
    return "#ffffff" if 1.05 / behind > behind / 0.05 else "#000000"


def _against(row: Json, ceilings: Ceilings | None) -> Json:
    """Return a row of collectives with the bus bandwidth that the node reached for that size, if it was measured."""
    ceiling = share = None
    if ceilings is not None and row["bytes"] and row["group_size"]:
        time_us = ceilings.time_us(row["kind"], row["bytes"])
        if time_us:
            ceiling = row["bytes"] / time_us * 1e-3 * bus_factor(row["kind"], row["group_size"])
            share = row["busbw_GBs"] / ceiling if row["busbw_GBs"] is not None else None
    return row | {"ceiling_GBs": ceiling, "of_ceiling": share}


def top_kernels(analysis: Analysis, most: int = _TOP) -> list[Json]:
    """Return the compute kernels (on a CPU: operators) with the longest sum over the analysed steps.

    Per row: name, calls a step and rank, ms a step and rank, that of the rank where it takes longest and its rank.
    Sums of durations, as profilers show them: what runs side by side counts twice.
    """
    steps, ranks = analysis.steps_analysed, [data for data in analysis.ranks if data.complete] or analysis.ranks
    if not steps:
        return []
    sums: dict[str, dict[int, tuple[int, int]]] = {}
    for data in ranks:
        own = data.kernels.take((data.kernels["role"] == COMPUTE) & np.isin(data.kernels["step"], steps))
        for code, rows in grouped.positions(own["name"]).items():
            total = int((own["end"][rows] - own["start"][rows]).sum())
            sums.setdefault(own.words["name"][code], {})[data.rank] = (total, len(rows))
    order = sorted(sums.items(), key=lambda item: -sum(total for total, _ in item[1].values()))[:most]
    found = []
    for name, by_rank in order:
        rank, (longest, _) = max(by_rank.items(), key=lambda item: item[1][0])
        total, calls = (sum(value[index] for value in by_rank.values()) for index in (0, 1))
        share = 1e-6 / len(steps)
        row = {"name": name, "calls": calls / len(steps) / len(ranks), "ms": total * share / len(ranks)}
        found.append(row | {"longest_ms": longest * share, "rank": rank})
    return found


def _operators(run_dir: RunDir) -> list[Json]:
    """Return the operators of the torch pass with the longest own time on the device, of its first rank."""
    for rank_dir in run_dir.for_pass("torch").ranks():
        try:
            table = pq.read_table(rank_dir.key_averages)
        except (OSError, pa.ArrowInvalid):
            continue
        rows: list[Json] = table.to_pylist()
        device = any(row.get("self_device_ns") for row in rows)
        column = "self_device_ns" if device else "self_cpu_ns"
        named = [row for row in rows if row.get(column) and _OPERATOR.match(row["name"])]
        known = sorted(named, key=lambda row: -row[column])[:_TOP]
        where = "device" if device else "CPU"
        return [
            {
                "name": row["name"],
                "count": row["count"],
                "ms": row[column] * 1e-6,
                "where": where,
                "rank": rank_dir.rank,
            }
            for row in known
        ]
    return []


def _by_level(warnings: Sequence[Json]) -> list[tuple[str, list[str]]]:
    """Return what is missing, what was repaired or doubtful, and what else is worth knowing."""
    titles = {"error": "Missing", "partial": "Missing", "warning": "Repaired or doubtful", "info": "Also worth knowing"}
    found: dict[str, list[str]] = {}
    for level in titles:
        for item in warnings:
            if item["level"] == level:
                found.setdefault(titles[level], []).append(item["message"])
    return list(found.items())


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def _environment(run_dir: RunDir) -> list[tuple[str, str]]:
    """Return the machine and the versions, as far as the run noted them."""
    try:
        found = json.loads(run_dir.environment.read_text())
        torch = found.get("torch") or {}
        gpus = found.get("gpus") or []
        cpu = found.get("cpu") or {}
        rows = [
            ("host", found.get("host")),
            ("CPU", f"{cpu.get('model')}, {cpu.get('usable')} cores" if cpu.get("model") else None),
            ("GPUs", f"{len(gpus)} x {gpus[0].get('name')}, driver {gpus[0].get('driver')}" if gpus else None),
            *((name, torch.get(key)) for name, key in (("torch", "version"), ("CUDA", "cuda"), ("NCCL", "nccl"))),
            ("Nsight Systems", found.get("nsys")),
        ]
    except (OSError, ValueError, AttributeError, TypeError):
        return []
    return [(name, str(value)) for name, value in rows if value]
