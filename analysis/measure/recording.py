"""`Recording`: the traced ranks on one clock, before anything is explained."""

import msgspec
import numpy as np

from rankscope.analysis.align.clock import Alignment
from rankscope.analysis.core.table import Table
from rankscope.analysis.measure.ceilings import Ceilings
from rankscope.analysis.measure.stragglers import Verdict
from rankscope.analysis.options import Options
from rankscope.analysis.rank.rank_data import RankData
from rankscope.conf import RunDir

CALL_COLUMNS = (
    "group_id", "kind", "dtype", "call", "ordinal", "seq", "step", "rank", "bytes", "group_size", "members", "start",
    "end", "start_ns", "end_ns", "ready_ns", "wait_ns", "transfer_ns", "transfer_clockfree_ns", "exposed_ns",
    "lateness_ns", "matched",
)  # fmt: skip
STEP_COLUMNS = (
    "step", "rank", "start_ns", "end_ns", "host_start_ns", "host_end_ns", "step_ns", "compute_ns",
    "exposed_transfer_ns", "exposed_wait_ns", "copy_ns", "data_stall_ns", "host_gap_ns", "comm_ns", "exposed_comm_ns",
    "wait_ns", "transfer_ns", "copies_ns", "busy_ns", "sm_busy_ns", "data_wait_ns", "records", "launches", "covered",
    "complete",
)  # fmt: skip


class Recording(msgspec.Struct, kw_only=True):
    """The ranks of one recording on one clock: collectives, steps, who is late. Times are integer nanoseconds."""

    ranks: list[RankData]
    world_size: int
    missing_ranks: list[int]
    alignment: Alignment
    calls: Table  # one row per collective call and rank
    step_table: Table  # one row per step and rank, all steps
    late_table: Table  # the lateness of each rank in each step
    steps_analysed: list[int]
    steps_judged: list[int]
    verdict: Verdict
    options: Options = Options()
    run_dir: RunDir | None = None
    pass_name: str | None = None  # the pass of `run_dir` that was analysed
    steps_opening: list[int] = []  # steps that are left out because a window opens there
    stretch: Table | None = None  # without steps: one row per rank for the whole window, as in `step_table`
    ceilings: Ceilings | None = None  # what the recording node can do, if it was measured
    size_stated: bool = True  # whether the recording says how many ranks there are; otherwise there may be more

    @property
    def profiler(self) -> str:
        """The pass that was analysed (torch, light, nsys); for foreign traces, the pass that they resemble."""
        return self.pass_name or ("nsys" if self.ranks and self.ranks[0].source == "nsys" else "torch")

    @property
    def rank_numbers(self) -> list[int]:
        """The ranks whose traces were read."""
        return [data.rank for data in self.ranks]

    @property
    def on_gpu(self) -> bool:
        """Whether every rank recorded a device."""
        return all(data.mode == "device" for data in self.ranks)

    @property
    def independent(self) -> bool:
        """Whether every rank was read, and none of them shares a collective with another."""
        several = self.world_size > 1 and not self.missing_ranks and all(data.complete for data in self.ranks)
        return several and bool(self.ranks) and not (self.calls["group_size"] != 1).any()

    @property
    def analysed_steps(self) -> Table:
        """The rows of `step_table` that count."""
        return self.step_table.take(np.isin(self.step_table["step"], self.steps_analysed))


def untraced(world_size: int, run_dir: RunDir, options: Options, why: str) -> Recording:
    """Return the recording of a run in which nothing was traced: all tables are empty, and the verdict says why."""
    nothing = np.zeros(0, np.int64)
    return Recording(
        ranks=[],
        world_size=world_size,
        missing_ranks=[],
        alignment=Alignment(method="none", reference_rank=0, offset_ns={}, drift={}, origin=0),
        calls=Table(dict.fromkeys(CALL_COLUMNS, nothing), {name: [] for name in ("group_id", "kind", "dtype")}),
        step_table=Table(dict.fromkeys(STEP_COLUMNS, nothing)),
        late_table=Table(dict.fromkeys(("step", "rank", "lateness_ns", "row", "in_all"), nothing)),
        steps_analysed=[],
        steps_judged=[],
        verdict=Verdict(verdict="undetermined", reason=why),
        options=options,
        run_dir=run_dir,
    )
