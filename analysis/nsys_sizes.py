"""Sizes of collectives that an export does not hold, from the torch pass of the same run.

Both passes do the same steps, so a step with as many collectives of the same kinds in the same order has the
same sizes.
"""

from pathlib import Path

import msgspec
import numpy as np

from rankscope.analysis.errors import AnalysisError
from rankscope.analysis.rank_data import NO_STEP, RankData
from rankscope.analysis.table import UNKNOWN


def borrow(ranks: list[RankData], folder: Path) -> list[RankData]:
    """Return the ranks of the nsys pass in `folder` with the torch pass's sizes; as they are where there is none."""
    torch_pass = folder.resolve().parent / "torch"
    lacking = any((data.comms["bytes"] == UNKNOWN).any() for data in ranks if data.source == "nsys")
    if not lacking or folder.resolve().name != "nsys" or not (torch_pass / "ranks").is_dir():
        return ranks
    from rankscope.analysis.pipeline import Options, load

    try:
        torch = load(torch_pass, options=Options(cache=False))
    except AnalysisError:
        return ranks  # a run's own analysis names what is wrong with it
    if not torch.steps_judged:
        return ranks
    lenders = {data.rank: data for data in torch.ranks}
    return [
        _with_sizes(data, lenders[data.rank], torch.steps_judged[-1]) if data.rank in lenders else data
        for data in ranks
    ]


def _with_sizes(data: RankData, lender: RankData, step: int) -> RankData:
    """Fill the unknown sizes of every step that looks like the lender's `step`."""
    kinds, sizes = _calls(lender, step)
    filled = data.comms["bytes"].copy()
    for own in np.unique(data.comms["step"]).tolist():
        rows = np.flatnonzero(data.comms["step"] == own)
        if own != NO_STEP and _calls(data, own)[0] == kinds:
            filled[rows] = np.where(filled[rows] == UNKNOWN, sizes, filled[rows])
    return msgspec.structs.replace(data, comms=data.comms.with_columns(bytes=filled))


def _calls(data: RankData, step: int) -> tuple[list[str | None], np.ndarray]:
    own = data.comms.take(data.comms["step"] == step)
    return own.texts("kind"), own["bytes"]
