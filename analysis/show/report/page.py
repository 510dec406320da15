"""`report.html` of a recording: one file that opens offline. Input: `summary.json` and the `Analysis`. Output: text."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankscope.analysis.core.json import Json
from rankscope.analysis.core.table import Table
from rankscope.analysis.measure.breakdown import PARTS
from rankscope.analysis.measure.step_metrics import STEP_METRICS
from rankscope.analysis.result import Analysis
from rankscope.analysis.show import pages
from rankscope.analysis.show.colours import COLOURS
from rankscope.analysis.show.markdown import command
from rankscope.analysis.show.report.cards import cards, four_numbers
from rankscope.analysis.show.report.curve import curve
from rankscope.analysis.show.report.heat import heat, in_numbers
from rankscope.analysis.show.report.job import machine_of, what_was_run
from rankscope.analysis.show.report.lists import lists
from rankscope.analysis.show.tables import tables
from rankscope.analysis.show.timeline.build import build
from rankscope.analysis.show.timeline.page import embedded
from rankscope.analysis.show.timeline.sentences import TITLES
from rankscope.analysis.show.words import (
    memory_words,
    per_words,
    slow_words,
    slowdowns,
    verdict_sentence,
    worth_dimensions,
)
from rankscope.conf.files import read_bytes
from rankscope.conf.trials import read_trials

_ROWS = 64  # ranks in the bars and the numbers; with more ranks, the late one and the slowest


def report_html(
    summary: Json,
    analysis: Analysis,
    name: str,
    found: Mapping[str, Table] | None = None,
    figures: Mapping[str, bytes] | None = None,
) -> str:
    """Return the report of one recording, with or without traces.

    `found` are the tables written next to the summary; None: make them here. `figures` are PNGs by title.
    """
    run_dir = analysis.run_dir
    rows = _worth_a_row(summary)
    steps, by_rank = curve(analysis, summary), heat(analysis)
    return pages.render(
        "report.html.jinja",
        unknown="?",
        title=name,
        s=summary,
        job=what_was_run(analysis, summary),
        verdict=verdict_sentence(summary),
        slow=slow_words(summary),
        numbers=four_numbers(summary),
        cards=cards(summary, [] if run_dir is None else read_trials(run_dir)),
        memory=memory_words(summary["memory"]),
        per=per_words(summary),
        overheads=slowdowns(summary),
        curve=steps,
        heat=by_rank,
        heat_numbers=in_numbers(by_rank),
        data=pages.packed({"curves": [] if steps is None else [steps], "heat": by_rank}),
        parts=[(part, TITLES[part], COLOURS[part]) for part in PARTS],
        bars=[_bar(row) for row in rows],
        longest=max((row["step_ms"] for row in rows if row["step_ms"] is not None), default=1) or 1,
        left_out=len(summary["per_rank"]) - len(rows),
        metrics=[metric for metric in STEP_METRICS if metric.title and not metric.device],
        device_metrics=[metric for metric in STEP_METRICS if metric.title and metric.device and analysis.on_gpu],
        by_dimension=worth_dimensions(summary["dimensions"]),
        collectives=[_against(row) for row in summary["collectives"]],
        has_ceilings=analysis.ceilings is not None,
        figures={title: base64.b64encode(image).decode() for title, image in (figures or {}).items()},
        notices=_by_level(summary["warnings"]),
        command=None if run_dir is None else command(run_dir),
        config=_text(run_dir.config) if run_dir else None,
        machine=[(key, str(value)) for key, value in (machine_of(run_dir) if run_dir else {}).items() if value],
        **_traced(analysis, name, found),
    )


def _traced(analysis: Analysis, name: str, found: Mapping[str, Table] | None) -> Json:
    """Return what only a trace has: the timeline of one step, and the lists of kernels and operators."""
    if not any(data.span is not None for data in analysis.ranks):
        return {"timeline": None, "lists": []}
    timeline = build(analysis, name, only_typical=True)
    return {
        "timeline": embedded([timeline], timeline.typical, only=timeline.typical),
        "lists": lists(analysis, tables(analysis) if found is None else found),
    }


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


def _against(row: Json) -> Json:
    """Add the bus bandwidth that the node reached at this size, if it was measured."""
    share = row["of_ceiling"]
    return row | {"ceiling_GBs": row["busbw_GBs"] / share if share and row["busbw_GBs"] is not None else None}


def _by_level(warnings: Sequence[Json]) -> list[tuple[str, list[str]]]:
    """Group warnings: what is missing, what was repaired or is doubtful, and what else is worth knowing."""
    titles = {"error": "Missing", "partial": "Missing", "warning": "Repaired or doubtful", "info": "Also worth knowing"}
    found: dict[str, dict[str, list[str]]] = {}
    for level, title in titles.items():
        for item in warnings:
            if item["level"] == level:
                found.setdefault(title, {}).setdefault(item["kind"], []).append(item["message"])
    return [(title, [line for lines in kinds.values() for line in _few(lines)]) for title, kinds in found.items()]


def _few(lines: list[str], most: int = 3) -> list[str]:
    """Return the warnings of one kind without repetition; of many the first ones, and how many more there are."""
    lines = list(dict.fromkeys(lines))
    return lines if len(lines) <= most else [*lines[: most - 1], f"... and {len(lines) - most + 1} more like these"]


def _text(path: Path) -> str | None:
    try:
        return read_bytes(path).decode(errors="replace")
    except OSError:
        return None
