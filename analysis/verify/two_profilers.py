"""Two witnesses of one job: what the torch pass and the nsys pass of a run say of the same quantities.

Comes in: the analysis of the run, whose source is the torch pass. Goes out: plain JSON values, None where the run has
no second witness. Both passes do the same steps, but at different times, so the values differ as two runs do.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from rankscope.analysis.core.notices import AnalysisError, Notice
from rankscope.analysis.core.table import UNKNOWN, Column

if TYPE_CHECKING:
    from rankscope.analysis.result import Analysis

Json = dict[str, Any]

QUANTITIES = {
    "step_ms": "step_ns",
    "compute_ms": "compute_ns",
    "transfer_ms": "transfer_ns",
    "exposed_comm_ms": "exposed_comm_ns",
    "copy_ms": "copies_ns",
}
_NEEDS_COLLECTIVES = ("compute_ms", "transfer_ms", "exposed_comm_ms")  # without them compute holds the waits too


def second_witness(analysis: "Analysis", notices: list[Notice]) -> "Analysis | None":
    """Analyse the nsys pass of a run whose source is the torch pass; a notice where it gives no numbers."""
    from rankscope.analysis.pipeline import load
    from rankscope.analysis.result import Options

    if analysis.run_dir is None or analysis.ranks[0].source != "kineto":
        return None
    pass_dir = analysis.run_dir.for_pass("nsys")
    if not any(rank.nsys_export.exists() or rank.nsys_report.exists() for rank in pass_dir.ranks()):
        return None
    try:
        return load(pass_dir.path, options=Options(cache=False, borrow_sizes=False))
    except AnalysisError as error:
        notices.append(Notice(kind="nsys_pass_unusable", message=f"nsys pass: {error}; nothing to compare with"))
        return None


def agreement(torch: "Analysis", nsys: "Analysis", notices: list[Notice]) -> Json:
    """Return each quantity under both profilers (ms, mean of ranks and judged steps) and nsys / torch - 1."""
    ranks = sorted({data.rank for data in torch.ranks} & {data.rank for data in nsys.ranks})
    sees = nsys.ranks[0].sees_communication or torch.world_size == 1
    quantities = []
    for name, column in QUANTITIES.items():
        hidden = not sees and name in _NEEDS_COLLECTIVES
        first, second = _mean(torch, ranks, column), None if hidden else _mean(nsys, ranks, column)
        difference = round(second / first - 1, 4) if first and second is not None else None
        quantities.append({"name": name, "torch": first, "nsys": second, "difference": difference})
    verdicts = {"torch": _verdict(torch), "nsys": _verdict(nsys)}
    decided = all(found["verdict"] != "undetermined" for found in verdicts.values())
    agree = verdicts["torch"] == verdicts["nsys"] if decided else None
    if agree is False:
        said = " and ".join(f"{name} says {_words(found)}" for name, found in verdicts.items())
        text = f"the passes disagree on the late rank: {said}; a rank that only one of them sees late is doubtful"
        notices.append(Notice(kind="passes_disagree", message=text, details=verdicts))
    return {
        "ranks": ranks,
        "steps": {"torch": torch.steps_judged, "nsys": nsys.steps_judged},
        "quantities": quantities,
        "verdict": verdicts | {"agree": agree},
    }


def _mean(analysis: "Analysis", ranks: list[int], column: str) -> float | None:
    table = analysis.step_table
    rows = np.isin(table["rank"], ranks) & np.isin(table["step"], analysis.steps_judged)
    values: Column = table[column][rows]
    if not len(values) or (values == UNKNOWN).any():
        return None
    return round(float(values.mean()) * 1e-6, 6)


def _verdict(analysis: "Analysis") -> Json:
    found = analysis.verdict
    return {"verdict": found.verdict, "rank": found.rank, "cause": found.cause}


def _words(found: Json) -> str:
    if found["rank"] is None:
        return str(found["verdict"])
    return f"rank {found['rank']} ({found['verdict']}, {found['cause'] or 'unknown cause'})"
