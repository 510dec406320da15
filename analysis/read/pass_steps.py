"""Reads the steps of a pass from the `steps.parquet` and `rank.json` of its ranks, as numeric columns.

Arrow is imported only when steps are read: traces without a run folder have none, and it takes a tenth of a second.
"""

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from rankscope.analysis.core.parquet import read_parquet
from rankscope.analysis.core.table import Column
from rankscope.analysis.read.rank_info import read_rank_info
from rankscope.conf import RunDir
from rankscope.conf.columns_file import json_of, read_columns
from rankscope.conf.contract import COUNTED, STEP_COLUMNS
from rankscope.conf.run_dir import PassDir, RankDir

if TYPE_CHECKING:
    import pyarrow as pa

_OTHERS = ("host_ahead", "gpu_clock_mhz", "gpu_power_w", "gpu_temperature_c")


class PassSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The counted steps of one pass: rank -> column -> values (ns; NaN where null)."""

    ranks: dict[int, dict[str, Column]]
    info: dict[int, dict[str, Any]]
    numbers: dict[int, Column] = {}  # rank -> numbers of its steps
    counted: dict[int, Column] = {}  # rank -> whether the step comes after warm-up

    def median(self, rank: int, column: str) -> float | None:
        """Return a rank's median of a column (ns), None if it was not measured."""
        values = self.ranks[rank].get(column, np.zeros(0))
        values = values[~np.isnan(values)]
        return float(np.median(values)) if len(values) else None

    def step_ns(self) -> float | None:
        """Return the median step (ns) over ranks and steps: device time if every rank has it, otherwise host time."""
        for column in ("device_ns", "host_ns"):
            values = [self.median(rank, column) for rank in self.ranks]
            known = [value for value in values if value is not None]
            if known and len(known) == len(values):
                return float(np.median(known))
        return None


def has_steps(rank_dir: RankDir) -> bool:
    return rank_dir.steps.exists() or json_of(rank_dir.steps).exists()


def read_steps(rank_dir: RankDir) -> "pa.Table":
    """Read the steps of a rank: as Parquet, or as the rank itself left them if the launcher did not come to it.

    It has the columns of `STEP_COLUMNS`; numbers that cannot be are null. Raises `OSError` or `ValueError`.
    """
    if rank_dir.steps.exists():
        table = read_parquet(rank_dir.steps, STEP_COLUMNS)
    else:
        table = read_columns(rank_dir.steps, STEP_COLUMNS)
    for name, kind in STEP_COLUMNS.items():
        if kind in (int, float):
            table = table.set_column(table.column_names.index(name), name, _possible(table[name], kind))
    steps = table["step"]
    if steps.null_count or table["phase"].null_count or (np.diff(steps.to_numpy()) <= 0).any():
        raise ValueError(f"{rank_dir.steps}: steps without number or phase, or not in order")
    return table


def _possible(column: "pa.ChunkedArray", kind: type) -> "pa.ChunkedArray":
    """Return a column with null for negative times, counts and sizes, and for numbers that no sum can hold."""
    import pyarrow as pa
    import pyarrow.compute as pc

    least, most = (0, 1 << 62) if kind is int else (-1e30, 1e30)
    found = pc.min_max(column).as_py()
    if kind is int and (found["min"] is None or (least <= found["min"] and found["max"] <= most)):
        return column
    fits = pc.and_(pc.greater_equal(column, least), pc.less_equal(column, most))
    return pc.if_else(fits, column, pa.scalar(None, column.type))


def readable(pass_dir: PassDir) -> set[int]:
    """Return the ranks whose steps and rank.json can be read."""
    found = set()
    for rank_dir in pass_dir.ranks():
        try:
            read_steps(rank_dir), read_rank_info(rank_dir)
        except (OSError, ValueError):
            continue
        found.add(rank_dir.rank)
    return found


def read_pass(pass_dir: PassDir, phase: str | None) -> PassSteps | None:
    """Read the steps of one phase (`measured`, `active`; None: all) of every rank of a pass; None if there are none."""
    import pyarrow as pa

    ranks: dict[int, dict[str, Column]] = {}
    info: dict[int, dict[str, Any]] = {}
    numbers: dict[int, Column] = {}
    counted: dict[int, Column] = {}
    for rank_dir in pass_dir.ranks():
        try:
            table = read_steps(rank_dir)
            info[rank_dir.rank] = read_rank_info(rank_dir)
        except (OSError, ValueError):
            continue  # the analysis names missing ranks by the traces; a pass without numbers is null
        phases = np.array(table["phase"].to_pylist())
        chosen = np.ones(len(phases), bool) if phase is None else phases == phase
        numbers[rank_dir.rank] = table["step"].to_numpy()[chosen]
        counted[rank_dir.rank] = np.isin(phases[chosen], COUNTED)
        columns = [name for name in table.column_names if name.endswith("_ns") or name in _OTHERS]
        ranks[rank_dir.rank] = {name: table[name].cast(pa.float64(), safe=False).to_numpy()[chosen] for name in columns}
    ranks = {rank: columns for rank, columns in ranks.items() if len(columns.get("host_ns", ()))}
    return PassSteps(ranks=ranks, info=info, numbers=numbers, counted=counted) if ranks else None


def read_repeats(run_dir: RunDir) -> list[PassSteps]:
    """Read the measured steps of every repeat of the plain pass that has some."""
    found = [read_pass(pass_dir, "measured") for pass_dir in run_dir.repeats("plain")]
    return [repeat for repeat in found if repeat is not None]
