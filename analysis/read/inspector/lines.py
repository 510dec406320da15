"""The layout of a line of NCCL Inspector: who wrote it, and one collective of one rank.

Source: github.com/NVIDIA/nccl, plugins/profiler/inspector: inspector_json.cc writes a line, inspector.cc times it, and
src/plugin/profiler.cc counts `coll_sn`, per communicator and function. `rank` is the rank in the communicator.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from rankscope.conf.typed_json import Count

FORMATS = ("v4.0",)  # of `inspector_output_format_version`, whose layout is known

# Where a duration comes from, the most exact first. A line of an older plugin does not say it.
GPU, UNSTATED, HOST, ENQUEUE = 0, 1, 2, 3
TIMINGS = ("kernel_gpu", "not stated", "kernel_cpu", "collective_cpu")

Name = Annotated[str, Meta(max_length=256)]
_Rank = Annotated[int, Meta(ge=0, lt=1 << 20)]


class Header(msgspec.Struct, frozen=True):
    """The communicator, and the rank that the process has in it."""

    id: Name
    rank: _Rank
    n_ranks: Annotated[int, Meta(ge=1, le=1 << 20)]
    comm_name: Name | None = None


class Writer(msgspec.Struct, frozen=True):
    """The process that wrote the line."""

    inspector_output_format_version: Name | None = None
    hostname: Name | None = None
    pid: Count | None = None


class Collective(msgspec.Struct, frozen=True):
    """One collective on one rank. Its time ends with the last channel's kernel, and holds the wait for other ranks."""

    coll: Name
    coll_sn: Count
    coll_msg_size_bytes: Count  # of one rank's part, see `Kind.per_part`
    coll_exec_time_us: Annotated[int, Meta(ge=0, le=2**50)]  # whole microseconds, rounded down
    coll_timing_source: Name | None = None

    @property
    def timing(self) -> int:
        """The position in `TIMINGS`; a word that is not known counts as the least exact."""
        if self.coll_timing_source is None:
            return UNSTATED
        return TIMINGS.index(self.coll_timing_source) if self.coll_timing_source in TIMINGS else ENQUEUE


class PointToPoint(msgspec.Struct, frozen=True):
    """A send or receive. Its number counts those of the rank alone."""

    p2p: Name


class Line(msgspec.Struct, frozen=True):
    """One line. A send or receive has `p2p_perf` instead of `coll_perf`."""

    header: Header
    metadata: Writer = Writer()
    coll_perf: Collective | None = None
    p2p_perf: PointToPoint | None = None
