"""`Analysis`: all results about one recording. Every table, report and page is made from it."""

from typing import TYPE_CHECKING

from rankscope.analysis.core.notices import Notice
from rankscope.analysis.explain.finding import Finding
from rankscope.analysis.measure.recording import Recording
from rankscope.analysis.tables import calls_and_steps
from rankscope.analysis.verify.two_profilers import Agreement
from rankscope.analysis.verify.without_profiler import Unprofiled

if TYPE_CHECKING:
    import pandas as pd


class Analysis(Recording, kw_only=True):
    """A measured recording with findings corrected by the plain pass, and notices of what is missing or doubtful."""

    findings: list[Finding]
    without: Unprofiled  # what the plain pass says
    agreement: Agreement | None = None  # the torch pass against the nsys pass, if both were recorded
    notices: list[Notice]

    def kernels(self) -> "pd.DataFrame":
        """Return every device record that counts (see docs/tables.md), times on the common clock."""
        return calls_and_steps.kernels(self).to_pandas()

    def collectives(self) -> "pd.DataFrame":
        """Return one row per collective call and rank (see docs/tables.md)."""
        return calls_and_steps.collectives(self).to_pandas()

    def steps(self) -> "pd.DataFrame":
        """Return one row per step and rank (see docs/tables.md)."""
        return calls_and_steps.steps(self).to_pandas()

    def segments(self) -> "pd.DataFrame":
        """Return one row per step and rank: its lateness and the collective at which it was latest."""
        return calls_and_steps.segments(self).to_pandas()
