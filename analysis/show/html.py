"""`report.html` of a recording: one file that opens offline. Input: `summary.json` and the `Analysis`. Output: text."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.json import Json
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.measure.breakdown import PARTS
from rankscope.analysis.measure.step_metrics import STEP_METRICS
from rankscope.analysis.result import Analysis
from rankscope.analysis.show import pages
from rankscope.analysis.show.colours import COLOURS
from rankscope.analysis.show.markdown import command
from rankscope.analysis.show.tables import tables
from rankscope.analysis.show.timeline.build import build
from rankscope.analysis.show.timeline.page import embedded
from rankscope.analysis.show.timeline.sentences import TITLES
from rankscope.analysis.show.words import (
    device_words,
    memory_words,
    per_words,
    slow_words,
    slowdowns,
    verdict_sentence,
)
from rankscope.conf import RunDir
from rankscope.conf.files import read_bytes, read_json

_TOP = 15  # rows in the lists of kernels, operators and modules
_ROWS = 64  # ranks in the bars and the heat map; with more ranks, the late one and the slowest
_LIGHT, _DARK = np.array([255, 255, 255]), np.array([176, 0, 32])


def report_html(summary: Json, analysis: Analysis, name: str, found: Mapping[str, Table] | None = None) -> str:
    """Return the report of one recording. A run folder adds the command that repeats it, settings and versions.

    `found` are the tables written next to the summary; None: make them here.
    """
    run_dir = analysis.run_dir
    timeline = build(analysis, name, only_typical=True)
    step = timeline.typical
    rows = _worth_a_row(summary)
    on_device = analysis.ranks[0].mode == "device"
    return pages.render(
        "report.html.jinja",
        unknown="?",
        title=name,
        s=summary,
        verdict=verdict_sentence(summary),
        slow=slow_words(summary),
        rate=summary["throughput"],
        device=device_words(summary["per_rank"]),
        memory=memory_words(summary["memory"]),
        per=per_words(summary),
        overheads=slowdowns(summary),
        parts=[(part, TITLES[part], COLOURS[part]) for part in PARTS],
        bars=[_bar(row) for row in rows],
        longest=max((row["step_ms"] for row in rows if row["step_ms"] is not None), default=1) or 1,
        left_out=len(summary["per_rank"]) - len(rows),
        metrics=[metric for metric in STEP_METRICS if metric.title and not metric.device],
        device_metrics=[metric for metric in STEP_METRICS if metric.title and metric.device and on_device],
        heat=_heat(analysis, [row["rank"] for row in rows]),
        collectives=[_against(row) for row in summary["collectives"]],
        has_ceilings=analysis.ceilings is not None,
        lists=_lists(analysis, tables(analysis) if found is None else found),
        notices=_by_level(summary["warnings"]),
        command=None if run_dir is None else command(run_dir),
        config=_text(run_dir.config) if run_dir else None,
        environment=_environment(run_dir) if run_dir else [],
        timeline=embedded([timeline], step, only=step),
    )


def _worth_a_row(summary: Json) -> list[Json]:
    """Return the ranks that get their own row: all, or if there are many, those with the longest steps."""
    rows: list[Json] = summary["per_rank"]
    if len(rows) <= _ROWS:
        return rows
    order = sorted(rows, key=lambda row: -(row["step_ms"] or 0))[:_ROWS]
    late = summary["stragglers"]["rank"]
    chosen = {row["rank"] for row in order} | {late}
    return [row for row in rows if row["rank"] in chosen]


def _bar(row: Json) -> Json:
    """Return a stacked bar of the known parts, with communication that cannot be split as one piece."""
    parts = [(part, value) for part in PARTS if (value := row["breakdown_ms"][part]) is not None]
    known = sum(value for _, value in parts)
    rest = max(0.0, (row["step_ms"] or 0) - known)
    pieces = [(COLOURS[part], TITLES[part], value) for part, value in parts]
    if rest > 1e-6:
        pieces.append((COLOURS["communication"], TITLES["communication"], rest))
    return row | {"pieces": pieces}


def _heat(analysis: Analysis, ranks: Sequence[int]) -> Json:
    """Return the lateness of each rank in each step, with a colour from white to red and a readable text colour."""
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
    """Return white or black, whichever has more contrast: always at least the 4.5 : 1 that WCAG asks for."""
    share = face / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    behind = float(linear @ [0.2126, 0.7152, 0.0722]) + 0.05
    return "#ffffff" if 1.05 / behind > behind / 0.05 else "#000000"


def _against(row: Json) -> Json:
    """Add the bus bandwidth that the node reached at this size, if it was measured."""
    share = row["of_ceiling"]
    return row | {"ceiling_GBs": row["busbw_GBs"] / share if share and row["busbw_GBs"] is not None else None}


def longest(table: Table, column: str, steps: int, most: int = _TOP) -> list[Json]:
    """Return the names with the largest sum of a column of ns over the ranks in `table` (rank, name, calls, ...).

    Per row: name, calls and ms per step and rank, the ms on the rank where it takes longest, and that rank; for kernels
    also the SM efficiency.
    """
    known = table.take((table[column] != UNKNOWN) & (table["name"] >= 0))
    ranks = len(np.unique(table["rank"]))
    found: list[Json] = []
    sums = np.bincount(known["name"], known[column]) if len(known) else np.zeros(0)
    chosen = np.isin(known["name"], np.argsort(-sums, kind="stable")[:most])
    known = known.take(chosen)
    for code, rows in group_by.positions(known["name"]).items():
        values = known[column][rows]
        if not values.any():
            continue
        by_rank = {rank: int(values[at].sum()) for rank, at in group_by.positions(known["rank"][rows]).items()}
        rank = max(by_rank, key=lambda number: by_rank[number])
        row: Json = {"name": known.words["name"][code], "calls": float(known["calls"][rows].sum()) / steps / ranks}
        row |= {"ms": float(values.sum()) * 1e-6 / steps / ranks}
        if "sm_efficiency" in known.columns:
            row["sm_efficiency"] = _mean(known["sm_efficiency"][rows], values)
        found.append(row | {"longest_ms": by_rank[rank] * 1e-6 / steps, "rank": rank})
    return sorted(found, key=lambda row: -row["ms"])[:most]


def _mean(shares: Column, weights: Column) -> float | None:
    known = ~np.isnan(shares)
    return float(np.average(shares[known], weights=weights[known])) if weights[known].any() else None


def _lists(analysis: Analysis, found: Mapping[str, Table]) -> list[Json]:
    """Return the lists of the longest kernels, operators and modules, without empty lists."""
    steps = len(analysis.steps_analysed)
    device = analysis.ranks[0].mode == "device"
    own, whole = ("self_device_ns", "device_ns") if device else ("self_cpu_ns", "cpu_ns")
    where = "device" if device else "CPU"
    wanted = (
        ("kernels_by_name", "total_ns", "Longest kernels", "kernel", "sums of durations"),
        ("operators", own, "Longest operators", "operator", f"own time on the {where}"),
        ("modules", whole, "Longest modules", "module", f"time on the {where}, including nested modules"),
    )
    lists = []
    for name, column, title, what, note in wanted:
        rows = longest(found[name], column, steps) if steps and len(found[name]) else []
        if rows:
            shares = any(row.get("sm_efficiency") is not None for row in rows)
            lists.append({"title": title, "what": what, "note": note, "rows": rows, "shares": shares})
    return lists


def _by_level(warnings: Sequence[Json]) -> list[tuple[str, list[str]]]:
    """Group warnings: what is missing, what was repaired or is doubtful, and what else is worth knowing."""
    titles = {"error": "Missing", "partial": "Missing", "warning": "Repaired or doubtful", "info": "Also worth knowing"}
    found: dict[str, list[str]] = {}
    for level in titles:
        for item in warnings:
            if item["level"] == level:
                found.setdefault(titles[level], []).append(item["message"])
    return list(found.items())


def _text(path: Path) -> str | None:
    try:
        return read_bytes(path).decode(errors="replace")
    except OSError:
        return None


def _environment(run_dir: RunDir) -> list[tuple[str, str]]:
    """Return the machine and the versions, as far as the run recorded them."""
    try:
        found = read_json(run_dir.environment)
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
