"""How much longer a step on a GPU becomes under torch.profiler: the steps of two passes in, a ratio out."""

from statistics import median
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from rankscope.conf import PassDir, RunDir
from rankscope.conf.contract import Phase, StepColumn, StepRow

_Clock = Literal["device_ns", "host_ns"]


def distortion(run_dir: RunDir) -> float | None:
    """Return median step of the torch pass / median step of the plain pass (device time); None if one is unknown."""
    plain, traced = step_ns(run_dir.for_pass("plain"), "measured"), step_ns(run_dir.for_pass("torch"), "active")
    return traced / plain if plain and traced else None


def step_ns(pass_dir: PassDir, phase: Phase, clock: _Clock = "device_ns") -> float | None:
    """Return the median over ranks of each rank's median step (ns); None if a rank did not measure it.

    By the device's clock it is None on a CPU, and it is None if a file cannot be read.
    """
    columns: list[StepColumn] = ["phase", clock]
    medians = []
    for rank in pass_dir.ranks():
        try:
            rows: list[StepRow] = pq.read_table(rank.steps, columns=columns).to_pylist()
        except (OSError, pa.ArrowInvalid):
            return None
        known = [row[clock] for row in rows if row["phase"] == phase and row[clock] is not None]
        if not known:
            return None
        medians.append(median(known))
    return median(medians) if medians else None
