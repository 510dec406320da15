"""Sizes of collectives that an export does not hold, from the torch pass of the same run.

Both passes do the same steps, so a step with as many collectives of the same kinds in the same order has the
same sizes.
"""

from pathlib import Path

import msgspec
import numpy as np

from rankscope.analysis.core.table import UNKNOWN
from rankscope.analysis.rank.rank_data import NO_STEP, RankData


def lender(ranks: list[RankData], folder: Path) -> Path | None:
    """Return the torch pass beside the nsys pass in `folder`, None where there is none or nothing is lacking."""
    torch_pass = folder.resolve().parent / "torch"
    lacking = any((data.comms["bytes"] == UNKNOWN).any() for data in ranks if data.source == "nsys")
    found = lacking and folder.resolve().name == "nsys" and (torch_pass / "ranks").is_dir()
    return torch_pass if found else None


def borrow(ranks: list[RankData], lenders: list[RankData], steps: list[int]) -> list[RankData]:
    """Return `ranks` with the sizes that the last of `steps` has on the lenders; as they are without such a step."""
    if not steps:
        return ranks
    by_rank = {data.rank: data for data in lenders}
    return [_with_sizes(data, by_rank[data.rank], steps[-1]) if data.rank in by_rank else data for data in ranks]


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
