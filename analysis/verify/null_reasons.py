"""Explains why numbers in a summary are null, and what was corrected: a `Recording` in, notices out."""

import numpy as np

from rankscope.analysis.core.notices import Notice
from rankscope.analysis.core.table import UNKNOWN
from rankscope.analysis.measure.recording import Recording

_OFFSET_WORTH_SAYING = 1_000_000  # ns


def clock_notices(recording: Recording) -> list[Notice]:
    """Return notices about clocks that were corrected by more than a millisecond or cannot be compared."""
    clock, notices = recording.alignment, []
    for rank, offset in clock.offset_ns.items():
        if abs(offset) >= _OFFSET_WORTH_SAYING:
            way = "ahead of" if offset > 0 else "behind"
            text = (
                f"rank {rank}: its clock is {abs(offset) * 1e-6:.3f} ms {way} rank {clock.reference_rank}'s; corrected"
            )
            notices.append(Notice(kind="clock_offset", rank=rank, message=text, details={"offset_us": offset / 1000}))
    for rank, (differs, limit) in clock.disagreements().items():
        text = (
            f"rank {rank}: the ends of collectives and the clock probes differ by {differs * 1e-6:.3f} ms, more than "
            f"their errors of {limit * 1e-6:.3f} ms: waits between hosts may be wrong by that much"
        )
        notices.append(Notice(kind="clock_disagreement", rank=rank, message=text))
    if recording.independent:
        text = (
            "the ranks share no collective, so each trains on its own: is the model wrapped in "
            "DistributedDataParallel? Throughput adds up the ranks"
        )
        notices.append(Notice(kind="independent_ranks", message=text))
        return notices
    for rank in sorted(clock.unaligned) if clock.method != "none" else []:
        text = f"rank {rank}: shares no synchronising collective with the others; its clock cannot be compared"
        notices.append(Notice(kind="unaligned_rank", rank=rank, message=text))
    return notices


def null_reasons(recording: Recording) -> list[Notice]:
    """Return notices that say why waits, transfers or per-step numbers are null."""
    notices = []
    lost = recording.calls.take(~recording.calls["matched"])
    in_steps = lost.take(np.isin(lost["step"], recording.steps_analysed))
    if len(in_steps) and not recording.missing_ranks and recording.world_size > 1:
        text = f"{len(in_steps)} collective records have no partner: their wait and transfer are null"
        notices.append(Notice(kind="unmatched_collectives", message=text, details={"count": len(in_steps)}))
    notices += _sm_efficiency(recording)
    if not recording.steps_analysed:
        text = "no complete step: per-step numbers are null; totals are valid for the complete window"
        notices.append(Notice(kind="no_analysed_steps", level="info", message=text))
    return notices


_NO_SHARES = {
    "kineto": 'the traces do not give "blocks per SM" for every kernel',
    "nsys": "the exports lack a kernel's grid, or a single number of SMs for all GPUs",
}


def _sm_efficiency(recording: Recording) -> list[Notice]:
    """Return a notice that says why the SM efficiency of ranks with a GPU is null."""
    table = recording.analysed_steps
    unknown = set(np.unique(table["rank"][table["sm_busy_ns"] == UNKNOWN]).tolist())
    ranks = [data.rank for data in recording.ranks if data.mode == "device" and data.rank in unknown]
    if not ranks:
        return []
    text = f"SM efficiency is null on {len(ranks)} ranks: {_NO_SHARES[recording.ranks[0].source]}"
    return [Notice(kind="no_sm_efficiency", level="info", message=text, details={"ranks": ranks})]
