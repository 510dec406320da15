"""The longest kernels, operators and modules, and kernels by family. Input: the tables. Output: rows for a template."""

from collections.abc import Mapping

import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.json import Json
from rankscope.analysis.core.kernel_families import family
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.result import Analysis

TOP = 20  # rows in a list
_FAMILIES = {
    "matmul": "matrix products",
    "convolution": "convolutions",
    "attention": "attention",
    "other": "other known kernels",
    None: "kernels whose names say nothing",
    "communication": "communication",
    "copy": "copies",
}


def lists(analysis: Analysis, found: Mapping[str, Table]) -> list[Json]:
    """Return the lists of the longest kernels, operators and modules, without empty lists."""
    steps = len(analysis.steps_analysed)
    device = analysis.ranks[0].mode == "device"
    own, whole = ("self_device_ns", "device_ns") if device else ("self_cpu_ns", "cpu_ns")
    where = "device" if device else "CPU"
    wanted = (
        ("kernels_by_name", "total_ns", "Kernels by name", "kernel", "Sums of durations"),
        ("operators", own, "Operators", "operator", f"Own time on the {where}"),
        ("modules", whole, "Modules", "module", f"Time on the {where}, including nested modules"),
    )
    step_ms = _step_ms(analysis)
    made = []
    for name, column, title, what, note in wanted:
        rows = longest(found[name], column, steps) if steps and len(found[name]) else []
        if not rows:
            continue
        for row in rows:
            row["share"] = row["ms"] / step_ms if step_ms else None
        shares = any(row.get("sm_efficiency") is not None for row in rows)
        families = _families(found[name], steps, step_ms) if name == "kernels_by_name" and device else []
        more = len(np.unique(found[name]["name"])) - len(rows)
        made.append(
            {
                "title": title,
                "what": what,
                "note": note,
                "rows": rows,
                "shares": shares,
                "families": families,
                "more": more,
            }
        )
    return made


def _step_ms(analysis: Analysis) -> float | None:
    table = analysis.analysed_steps
    return float(table["step_ns"].mean()) * 1e-6 if len(table) else None


def _families(table: Table, steps: int, step_ms: float | None) -> list[Json]:
    """Return the time of each family of kernels: ms per step and rank, calls, and the share of the step."""
    known = table.take(table["name"] >= 0)
    size = len(known.words["name"])
    total, calls = (np.bincount(known["name"], known[column], size) for column in ("total_ns", "calls"))
    kinds = np.zeros(size, np.int64)
    kinds[known["name"]] = known["class"]
    per = steps * len(np.unique(table["rank"]))
    sums: dict[str, list[float]] = {}
    for code in np.flatnonzero(total).tolist():
        kind = known.words["class"][int(kinds[code])]
        title = _FAMILIES[kind if kind in ("communication", "copy") else family(known.words["name"][code])]
        ms, count = sums.setdefault(title, [0.0, 0.0])
        sums[title] = [ms + float(total[code]) * 1e-6 / per, count + float(calls[code]) / per]
    found: list[Json] = [
        {"name": title, "ms": ms, "calls": count, "share": ms / step_ms if step_ms else None}
        for title, (ms, count) in sums.items()
    ]
    return sorted(found, key=lambda row: -row["ms"])


def longest(table: Table, column: str, steps: int, most: int = TOP) -> list[Json]:
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
