"""`RankData`: what is left of one rank when everything that needs only its own trace is done.

Comes out of `prepare.prepare`; goes into matching, alignment and measuring. Small: merged intervals, the
communication records, the steps; the kernels stay for those who ask for tables.
"""

import msgspec

from rankscope.analysis.core.intervals import Intervals
from rankscope.analysis.core.notices import Notice
from rankscope.analysis.core.table import Table
from rankscope.analysis.read.rank_trace import Probe

# One row a communication record of this rank, in the order of the calls.
COMM_COLUMNS = (
    "start", "end", "launch_start", "step", "kind", "device", "stream", "group", "group_ranks", "group_size",
    "seq", "in_nelems", "out_nelems", "dtype", "bytes", "described",
)  # fmt: skip
NO_STEP = -1  # launched outside every step: left over from before the window, or after it


class RankData(msgspec.Struct, kw_only=True):
    """One rank, measured as far as it can be alone."""

    rank: int
    files: list[str]
    mode: str  # "device": GPU records; "cpu": the collectives' own CPU records and operators
    world_size: int | None
    backend: str | None
    groups: dict[str, list[int]]
    host_id: str | None
    probes: list[Probe]
    complete: bool
    source: str  # "kineto" or "nsys"
    sees_communication: bool  # False: that there are no collectives means nothing
    steps: Table
    comms: Table
    kernels: Table
    compute: Intervals
    copies: Intervals
    data_wait: Intervals
    activity: Table  # activity.ACTIVITY: one row a step
    syncs: Table  # activity.SYNCS: what made the host wait for the device
    launches: Table  # start, end, name, thread, correlation
    host: Table  # operators and annotations
    span: tuple[int, int] | None  # first start and last end of the device records (on a CPU: of `kernels`)
    left_over: int  # device records launched before the window
    notices: list[Notice]
