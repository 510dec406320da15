"""The metrics of a step, each defined once: the summary, the report and the exports read this list.

A metric is a function of rows of the steps' table (docs/tables.md, one row per step and rank). From all rows of a rank
it gives the mean over the analysed steps, from a single row the value in that step.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from rankscope.analysis.core.table import Table
from rankscope.analysis.core.units import mean_of, sum_of

Value = float | None  # None: unknown


class StepMetric(msgspec.Struct, frozen=True, kw_only=True):
    """One number about the steps of a rank; docs/metrics.md defines it."""

    name: str  # in summary.json and in exports
    of: Callable[[Table], Value]
    unit: Literal["ms", "share"] = "ms"
    communication: bool = False  # unknown if the recorder cannot see collectives
    device: bool = False  # unknown for a rank without a device
    title: str | None = None  # the heading of its column in the report; None: not in the report
    says: str = ""  # the explanation under the report's table


def _mean(column: str) -> Callable[[Table], Value]:
    return lambda rows: mean_of(rows[column])


def _share_of_step(column: str) -> Callable[[Table], Value]:
    def share(rows: Table) -> Value:
        part = sum_of(rows[column])
        return None if part is None else round(part / float(rows["step_ns"].sum()), 6)

    return share


def _overlap(rows: Table) -> Value:
    comm = float(rows["comm_ns"].sum())
    return round(1 - float(rows["exposed_comm_ns"].sum()) / comm, 6) if comm else None


def _transfer_overlap(rows: Table) -> Value:
    transfer, exposed = sum_of(rows["transfer_ns"]), sum_of(rows["exposed_transfer_ns"])
    return None if not transfer or exposed is None else round(1 - exposed / transfer, 6)


STEP_METRICS = (
    StepMetric(name="step_ms", of=_mean("step_ns")),
    StepMetric(name="compute_ms", of=_mean("compute_ns")),
    StepMetric(name="comm_ms", of=_mean("comm_ns"), communication=True, title="communication"),
    StepMetric(name="wait_ms", of=_mean("wait_ns"), communication=True),
    StepMetric(name="transfer_ms", of=_mean("transfer_ns"), communication=True),
    StepMetric(name="exposed_comm_ms", of=_mean("exposed_comm_ns"), communication=True),
    StepMetric(name="exposed_wait_ms", of=_mean("exposed_wait_ns"), communication=True),
    StepMetric(name="exposed_transfer_ms", of=_mean("exposed_transfer_ns"), communication=True),
    StepMetric(
        name="overlap_ratio",
        of=_overlap,
        unit="share",
        communication=True,
        title="of it hidden",
        says="Overlap is the share of communication during which this rank computed. Hiding a wait is not hiding "
        "work, so transfer has its own column.",
    ),
    StepMetric(
        name="transfer_overlap_ratio",
        of=_transfer_overlap,
        unit="share",
        communication=True,
        title="of transfer hidden",
    ),
    StepMetric(name="copy_ms", of=_mean("copies_ns")),
    StepMetric(name="data_wait_ms", of=_mean("data_wait_ns")),
    StepMetric(name="data_stall_ms", of=_mean("data_stall_ns")),
    StepMetric(name="host_gap_ms", of=_mean("host_gap_ns")),
    StepMetric(
        name="gpu_busy_ratio",
        of=_share_of_step("busy_ns"),
        unit="share",
        device=True,
        title="device busy",
        says="A device is busy while anything runs on it.",
    ),
    StepMetric(
        name="sm_efficiency",
        of=_share_of_step("sm_busy_ns"),
        unit="share",
        device=True,
        title="SM efficiency",
        says="SM efficiency is the share of its multiprocessors that got a block of threads, over the step: estimated "
        "from the launches, an upper bound.",
    ),
)


def summarise_rank(rows: Table, *, on_device: bool, sees_communication: bool) -> dict[str, Value]:
    """Return every metric of one rank over `rows`, by name; None if the recording cannot tell."""
    return {
        metric.name: None
        if (metric.device and not on_device) or (metric.communication and not sees_communication)
        else metric.of(rows)
        for metric in STEP_METRICS
    }
