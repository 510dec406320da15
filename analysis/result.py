"""`Options` of an analysis and its result, an `Analysis`: what every table, finding and page is made of."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from rankscope.analysis.align.clock import Alignment
from rankscope.analysis.core.notices import Notice
from rankscope.analysis.core.table import Table
from rankscope.analysis.explain import facts, stragglers
from rankscope.analysis.explain.limits import Limits
from rankscope.analysis.measure.ceilings import Ceilings
from rankscope.analysis.rank.rank_data import RankData
from rankscope.analysis.tables import calls_and_steps
from rankscope.conf import RunDir

if TYPE_CHECKING:
    import pandas as pd


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What can be set about an analysis."""

    thresholds: stragglers.Thresholds = stragglers.Thresholds()
    limits: Limits = Limits()
    borrow_sizes: bool = True  # of a run's nsys pass: collectives' sizes from the torch pass, where it has none
    cache: bool = True  # keep what was found of each rank in the user's cache folder, and use what is there
    cache_folder: Path | None = None  # keep it there instead
    fast: bool | None = None  # read with the accelerated scanner; None: where it is installed and pays
    only_ranks: frozenset[int] | None = None  # read and analyse these alone; waits need every rank of a group
    only_steps: tuple[int | None, int | None] | None = None  # analyse steps from the first to the second, inclusive
    executor: Any = None  # concurrent.futures.Executor for the work per rank; None: processes where they pay
    progress: bool = False  # show a progress bar on a terminal
    ceilings: Path | None = None  # what the node can do; None: of a run, where `rankscope ceilings` has measured it
    nsys_steps: str | None = None  # name or regular expression of the NVTX ranges that are steps; None: recognised


class Analysis(msgspec.Struct, kw_only=True):
    """Everything that was found out about one recording."""

    ranks: list[RankData]
    world_size: int
    missing_ranks: list[int]
    notices: list[Notice]
    alignment: Alignment
    calls: Table  # one row a record of a collective and rank
    step_table: Table  # one row a step and rank, all steps
    late_table: Table  # lateness of each rank in each step
    steps_analysed: list[int]
    steps_judged: list[int]
    verdict: stragglers.Verdict
    findings: list[facts.Finding]
    options: Options = Options()
    run_dir: RunDir | None = None
    pass_name: str | None = None  # of `run_dir`: the pass that was analysed
    ceilings: Ceilings | None = None  # what the recording node can do, where it was measured

    @property
    def profiler(self) -> str:
        """The pass that was analysed (torch, light, nsys); of traces from elsewhere, the one that they resemble."""
        return self.pass_name or ("nsys" if self.ranks[0].source == "nsys" else "torch")

    @property
    def analysed_steps(self) -> Table:
        """The rows of `step_table` that count."""
        return self.step_table.take(np.isin(self.step_table["step"], self.steps_analysed))

    def kernels(self) -> "pd.DataFrame":
        """Return every device record that counts (see docs/tables.md), times on the common clock."""
        return calls_and_steps.kernels(self).to_pandas()

    def collectives(self) -> "pd.DataFrame":
        """Return one row a collective call and rank (see docs/tables.md)."""
        return calls_and_steps.collectives(self).to_pandas()

    def steps(self) -> "pd.DataFrame":
        """Return one row a step and rank (see docs/tables.md)."""
        return calls_and_steps.steps(self).to_pandas()

    def segments(self) -> "pd.DataFrame":
        """Return one row a step and rank: its lateness and the collective where it was latest."""
        return calls_and_steps.segments(self).to_pandas()
