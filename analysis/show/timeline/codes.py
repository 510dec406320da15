"""The codes of what a timeline shows: the parts of a step, and the states of communication in the strip below them."""

import numpy as np

from rankscope.analysis.core.table import Column, Table
from rankscope.analysis.measure.breakdown import PARTS

NAMES = (*PARTS, "communication")  # a code is a position in NAMES
COMPUTE, TRANSFER, WAIT, COPY, DATA_STALL, HOST_GAP = map(
    NAMES.index, ("compute", "exposed_transfer", "exposed_wait", "copy", "data_stall", "host_gap")
)
UNSPLIT = NAMES.index("communication")  # wait and transfer cannot be told apart

STRIP = ("exposed_transfer", "exposed_wait", "hidden_transfer", "hidden_wait", "communication")
EXPOSED_WAIT, HIDDEN_WAIT = STRIP.index("exposed_wait"), STRIP.index("hidden_wait")
_IN_STRIP = np.full((len(NAMES), 2), -1)  # by part, and by whether compute hides it
_IN_STRIP[TRANSFER] = STRIP.index("exposed_transfer"), STRIP.index("hidden_transfer")
_IN_STRIP[WAIT] = EXPOSED_WAIT, HIDDEN_WAIT
_IN_STRIP[UNSPLIT] = STRIP.index("communication")


def strip_codes(comm: Table) -> Column:
    """Return the position in STRIP of each row of `RankView.comm`."""
    codes: Column = _IN_STRIP[comm["part"], comm["hidden"].astype(int)]
    return codes
