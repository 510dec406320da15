"""How much longer a step on a GPU becomes under torch.profiler: the steps of two passes in, a ratio out."""

from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq

from rankscope.conf import PassDir, RunDir
from rankscope.conf.contract import Phase, StepColumn, StepRow

_COLUMNS: list[StepColumn] = ["phase", "device_ns"]


def distortion(run_dir: RunDir) -> float | None:
    """Return median step of the torch pass / median step of the plain pass (device time); None if one is unknown."""
    plain, traced = _step_ns(run_dir.for_pass("plain"), "measured"), _step_ns(run_dir.for_pass("torch"), "active")
    return traced / plain if plain and traced else None


def _step_ns(pass_dir: PassDir, phase: Phase) -> float | None:
    """Return the median over ranks of each rank's median step (ns); None on a CPU, or if a file cannot be read."""
    medians = []
    for rank in pass_dir.ranks():
        try:
            rows: list[StepRow] = pq.read_table(rank.steps, columns=_COLUMNS).to_pylist()
        except (OSError, pa.ArrowInvalid):
            return None
        known = [row["device_ns"] for row in rows if row["phase"] == phase and row["device_ns"] is not None]
        if not known:
            return None
        medians.append(median(known))
    return median(medians) if medians else None
