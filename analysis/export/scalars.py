"""The rows of an export: one value per name, rank and step. The same for every format.

Input: a run folder (its plain pass) or an `Analysis` (its traced steps). Times are ms.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rankscope.analysis.core.units import mean_of
from rankscope.analysis.measure.breakdown import PARTS
from rankscope.analysis.measure.step_metrics import summarise_rank
from rankscope.analysis.read.pass_steps import read_steps
from rankscope.analysis.result import Analysis
from rankscope.analysis.show.summary import summarise
from rankscope.analysis.sweep.scaling import Measured
from rankscope.analysis.tables.calls_and_steps import steps
from rankscope.conf import RunDir
from rankscope.conf.contract import StepColumn

_PLAIN: dict[StepColumn, str] = {
    "device_ns": "step_ms",
    "host_ns": "host_step_ms",
    "data_wait_ns": "data_wait_ms",
    "loss": "loss",
}


class Scalar(NamedTuple):
    """One value of one rank in one step."""

    name: str
    rank: int
    step: int
    value: float


def plain_scalars(run_dir: RunDir) -> Iterator[Scalar]:
    """Yield the steps of the plain pass of every rank, including warm-up; ranks without readable steps are left out."""
    for rank_dir in run_dir.for_pass("plain").ranks():
        try:
            table = read_steps(rank_dir)
        except (OSError, ValueError):
            continue
        numbers = table["step"].to_pylist()
        for column, name in _PLAIN.items():
            if column not in table.column_names:
                continue
            scale = 1e-6 if column.endswith("_ns") else 1.0
            for step, value in zip(numbers, table[column].to_pylist(), strict=True):
                if value is not None:
                    yield Scalar(f"plain_{name}", rank_dir.rank, step, value * scale)


def traced_scalars(analysis: Analysis) -> Iterator[Scalar]:
    """Yield the step metrics, the parts and the lateness of every analysed step and rank, as far as they are known."""
    table = steps(analysis)
    table = table.take(table["analysed"])
    by_rank = {data.rank: data for data in analysis.ranks}
    for number in range(len(table)):
        row = table.take(np.array([number]))
        step, rank = int(row["step"][0]), int(row["rank"][0])
        data = by_rank[rank]
        values = summarise_rank(row, on_device=data.mode == "device", sees_communication=data.sees_communication)
        values |= {f"{part}_ms": mean_of(row[f"{part}_ns"]) for part in (*PARTS, "lateness")}
        for name, value in values.items():
            if value is not None:
                yield Scalar(f"traced_{name}", rank, step, value)


def results(measured: Measured | None, analysis: Analysis | None) -> dict[str, float]:
    """Return the numbers by which runs are compared; unknown ones are left out."""
    found: dict[str, float | None] = {
        "result/step_ms": None if measured is None else measured.step_ms,
        "result/samples_per_s": None if measured is None else measured.samples_per_s,
    }
    if analysis is not None:
        summary = summarise(analysis)
        found["result/mfu"] = (summary["throughput"] or {}).get("mfu")
        found["result/lateness_ms"] = summary["stragglers"]["lateness_ms"]
        for part in PARTS:
            values = [row["breakdown_ms"][part] for row in summary["per_rank"]]
            known = [value for value in values if value is not None]
            found[f"result/{part}_ms"] = float(np.mean(known)) if known and len(known) == len(values) else None
    return {name: float(value) for name, value in found.items() if value is not None}
