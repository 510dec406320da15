"""Compares what the torch pass and the nsys pass of a run say about the same quantities.

Both passes record the same steps, but at different times, so the values differ as much as those of two runs.
"""

from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.core.notices import Notice
from rankscope.analysis.core.table import UNKNOWN, Column
from rankscope.analysis.measure.recording import Recording

QUANTITIES = {
    "step_ms": "step_ns",
    "compute_ms": "compute_ns",
    "transfer_ms": "transfer_ns",
    "exposed_comm_ms": "exposed_comm_ns",
    "copy_ms": "copies_ns",
}
_NEEDS_COLLECTIVES = ("compute_ms", "transfer_ms", "exposed_comm_ms")  # otherwise compute contains the waits too


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity under both profilers: ms, mean of ranks and judged steps; None: unknown."""

    name: str
    torch: float | None
    nsys: float | None
    difference: float | None  # nsys / torch - 1


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far the torch pass and the nsys pass agree."""

    ranks: list[int]
    steps: dict[str, list[int]]  # by pass: the judged steps
    quantities: list[Quantity]
    verdict: dict[str, Any]  # by pass: verdict, rank, cause; and whether they agree


def agreement(torch: Recording, nsys: Recording) -> tuple[Agreement, list[Notice]]:
    """Compare the passes. A notice says if they disagree on the late rank."""
    ranks = sorted({data.rank for data in torch.ranks} & {data.rank for data in nsys.ranks})
    sees = nsys.ranks[0].sees_communication or torch.world_size == 1
    quantities = []
    for name, column in QUANTITIES.items():
        hidden = not sees and name in _NEEDS_COLLECTIVES
        first, second = _mean(torch, ranks, column), None if hidden else _mean(nsys, ranks, column)
        difference = round(second / first - 1, 4) if first and second is not None else None
        quantities.append(Quantity(name=name, torch=first, nsys=second, difference=difference))
    verdicts = {"torch": _verdict(torch), "nsys": _verdict(nsys)}
    decided = all(found["verdict"] != "undetermined" for found in verdicts.values())
    agree = verdicts["torch"] == verdicts["nsys"] if decided else None
    notices = []
    if agree is False:
        said = " and ".join(f"{name} says {_words(found)}" for name, found in verdicts.items())
        text = f"the passes disagree on the late rank: {said}; a rank that is late in only one of them is doubtful"
        notices.append(Notice(kind="passes_disagree", message=text, details=verdicts))
    found = Agreement(
        ranks=ranks,
        steps={"torch": torch.steps_judged, "nsys": nsys.steps_judged},
        quantities=quantities,
        verdict=verdicts | {"agree": agree},
    )
    return found, notices


def _mean(recording: Recording, ranks: list[int], column: str) -> float | None:
    table = recording.step_table
    rows = np.isin(table["rank"], ranks) & np.isin(table["step"], recording.steps_judged)
    values: Column = table[column][rows]
    if not len(values) or (values == UNKNOWN).any():
        return None
    return round(float(values.mean()) * 1e-6, 6)


def _verdict(recording: Recording) -> dict[str, Any]:
    found = recording.verdict
    return {"verdict": found.verdict, "rank": found.rank, "cause": found.cause}


def _words(found: dict[str, Any]) -> str:
    if found["rank"] is None:
        return str(found["verdict"])
    return f"rank {found['rank']} ({found['verdict']}, {found['cause'] or 'unknown cause'})"
