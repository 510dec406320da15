"""Takes sizes of collectives that an nsys export lacks from the torch pass of the same run.

Both passes run the same steps. So a step with the same number of collectives, of the same kinds in the same order, has
the same sizes.
"""

from pathlib import Path

import msgspec
import numpy as np

from rankscope.analysis.core.table import UNKNOWN
from rankscope.analysis.rank.rank_data import NO_STEP, RankData

# Which passes may lend sizes to a pass: a step with the same calls in the same order has the same sizes.
_LENDERS = {"nsys": ("torch", "detail"), "torch": ("detail",), "light": ("torch", "detail")}


def lender(ranks: list[RankData], folder: Path) -> Path | None:
    """Return the torch pass next to the nsys pass in `folder`; None if there is none or no size is missing."""
    lacking = any((data.comms["bytes"] == UNKNOWN).any() for data in ranks)
    names = _LENDERS.get(folder.resolve().name, ()) if lacking else ()
    passes = (folder.resolve().parent / name for name in names)
    return next((place for place in passes if (place / "ranks").is_dir()), None)


def borrow(ranks: list[RankData], lenders: list[RankData], steps: list[int]) -> list[RankData]:
    """Return `ranks` with the sizes that the last of `steps` has on the lenders; unchanged if there is no step."""
    if not steps:
        return ranks
    by_rank = {data.rank: data for data in lenders}
    return [_with_sizes(data, by_rank[data.rank], steps[-1]) if data.rank in by_rank else data for data in ranks]


def _with_sizes(data: RankData, lender: RankData, step: int) -> RankData:
    """Fill in the unknown sizes of every step that has the same calls as the lender's `step`."""
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
