"""Reads how much device memory each rank used from the steps that it recorded: one row per rank."""

from typing import Any

from rankscope.analysis.read.pass_steps import read_steps
from rankscope.conf import PassDir, RunDir
from rankscope.conf.contract import PASSES, StepColumn

_COLUMNS: tuple[StepColumn, ...] = ("memory_allocated_bytes", "memory_reserved_bytes", "memory_peak_bytes")


def memory_of(run_dir: RunDir) -> list[dict[str, Any]]:
    """Return each rank's maximum (bytes) over the steps: `peak` and `reserved` inside a step, `allocated` after it.

    The numbers are the allocator's, of the plain pass, otherwise of the first pass that has them. Empty on a CPU.
    """
    for name in PASSES:
        rows = _rows(run_dir.for_pass(name))
        if rows:
            return rows
    return []


def _rows(pass_dir: PassDir) -> list[dict[str, Any]]:
    rows = []
    for rank_dir in pass_dir.ranks():
        try:
            table = read_steps(rank_dir)
        except (OSError, ValueError):
            continue
        allocated, reserved, peak = (_largest(table[name].to_pylist()) for name in _COLUMNS)
        if peak is not None:
            rows.append(
                {"rank": rank_dir.rank, "peak_bytes": peak, "allocated_bytes": allocated, "reserved_bytes": reserved}
            )
    return rows


def _largest(values: list[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
