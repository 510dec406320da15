"""The part of `rankscope compare` that reads both recordings again: which kernels, operators and collectives differ."""

from pathlib import Path

import msgspec
from rich.table import Table

from rankscope.analysis.core.console import Console
from rankscope.analysis.core.json import Json
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.pipeline import load
from rankscope.analysis.sweep.work_diff import WorkChange, work_diff

_SHOWN = 12
_NAME = 44  # characters of a name in the terminal


def show_work(a: Path, b: Path, label: str | None, console: Console) -> list[Json]:
    """Print what differs in the traced steps; returns all rows. Recordings that cannot be compared give a line."""
    try:
        found = work_diff(load(a), load(b))
    except AnalysisError as error:
        if label is None:
            raise
        console.print(f"work not compared: {error}", style="yellow")
        return []
    console.print(_table([row for row in found if not row.is_noise][:_SHOWN]))
    real = sum(not row.is_noise for row in found)
    more = f"{real - _SHOWN} more, and " if real > _SHOWN else ""
    console.print(f"{more}{len(found) - real} that may be noise: --json has all", style="dim")
    point = {} if label is None else {"point": label}
    return [point | msgspec.to_builtins(row) for row in found]


def _table(rows: list[WorkChange]) -> Table:
    table = Table(box=None, title="Work of the traced steps, ms per step and rank", title_justify="left")
    for name in ("kind", "name", "", "A", "B", "calls A", "B "):
        table.add_column(name, justify="left" if name in ("kind", "name", "") else "right")
    for row in rows:
        name = row.name if len(row.name) <= _NAME else row.name[: _NAME - 3] + "..."
        numbers = (f"{row.a_ms:.3f}", f"{row.b_ms:.3f}", f"{row.a_calls:.4g}", f"{row.b_calls:.4g}")
        table.add_row(row.kind, name, row.how, *numbers)
    return table
