"""`RankData`: everything about one rank that needs only its own trace.

`prepare.prepare` builds it; matching, alignment and measuring use it. It is small: merged intervals, the communication
records, the steps. The kernels are kept for those who ask for tables.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from rankscope.analysis.core.intervals import Intervals
from rankscope.analysis.core.notices import Notice
from rankscope.analysis.core.table import Table
from rankscope.analysis.read.rank_trace import Probe

# One row per communication record of this rank, in the order of the calls.
COMM_COLUMNS = (
    "start", "end", "launch_start", "step", "kind", "device", "stream", "group", "group_ranks", "group_size",
    "seq", "peer", "in_nelems", "out_nelems", "dtype", "bytes", "described", "scope",
)  # fmt: skip
NO_STEP = -1  # launched outside every step: left over from before the window, or launched after it


class DeviceWork(msgspec.Struct, kw_only=True):
    """What a process did on one more device than the one that stands for its rank."""

    device: int
    steps: Table  # as those of the rank, with the windows of this device
    compute: Intervals
    comm: Intervals
    copies: Intervals
    span: tuple[int, int]
    records: int


class DeviceModel(msgspec.Struct, frozen=True, kw_only=True):
    """The kind of a device, for advice that it can follow."""

    vendor: Literal["nvidia", "amd", "other"]
    name: str | None = None
    compute_major: int | None = None  # of NVIDIA's compute capability


class RankData(msgspec.Struct, kw_only=True):
    """The measurements of one rank that need no other rank."""

    rank: int
    files: list[str]
    mode: str  # "device": GPU records; "cpu": the collectives' own CPU records and operators
    world_size: int | None
    backend: str | None
    groups: dict[str, Sequence[int]]
    descriptions: dict[str, str]  # process group -> what the job calls it
    host_id: str | None
    probes: list[Probe]
    complete: bool
    source: str  # "kineto" or "nsys"
    sees_communication: bool  # False: no collectives means unknown, not zero
    steps: Table  # one row per step: see `steps.device_windows`
    comms: Table
    kernels: Table
    compute: Intervals
    copies: Intervals
    data_wait: Intervals
    activity: Table  # activity.ACTIVITY: one row per step
    syncs: Table  # activity.SYNCS: what made the host wait for the device
    ranges: Table  # start, end, name: the outermost annotations on the thread of the steps
    device_ranges: Table  # the same, from the first device record that a range launched to the last one
    launches: Table  # start, end, name, thread, correlation
    host: Table  # operators and annotations
    span: tuple[int, int] | None  # first start and last end of the device records (without a GPU: of `kernels`)
    left_over: int  # device records launched before the window
    notices: list[Notice]
    device: int | None = None  # the device of all tables above; None on a CPU
    others: list[DeviceWork] = []  # the other devices of the process
    stretch: Table | None = None  # without steps: a row per window, in the form of `steps`; None: there are steps
    model: DeviceModel | None = None  # what kind of device it is, if the trace says so
    pauses: int = 0  # ns between several windows of the process
