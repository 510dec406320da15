"""`RankTrace`: the tables that one rank recorded. Every reader (Kineto, Nsight Systems) must produce it.

Times are absolute integer nanoseconds of the rank's own clock. `duration` is `UNKNOWN` if the file gave none.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.core.notices import Notice
from rankscope.analysis.core.table import UNKNOWN, Column, Table

# Work on a device: kernels, copies, memsets. The collective columns are known only for communication kernels.
DEVICE_COLUMNS = (
    "start", "duration", "activity", "name", "device", "stream", "correlation", "external_id", "bytes",
    "occupancy",  # estimated from a kernel's launch (%); 0 if the profiler could not estimate it
    "sm_share",  # share of the SMs that a kernel's blocks can use (sm_share.WHOLE = all); 0 as above
)  # fmt: skip
COLLECTIVE_COLUMNS = (
    "collective", "in_nelems", "out_nelems", "group_size", "dtype", "group", "group_ranks", "group_desc", "seq",
    "peer",  # global rank to which a send goes or from which a receive comes
)  # fmt: skip
LAUNCH_COLUMNS = ("start", "duration", "name", "thread", "correlation")
HOST_COLUMNS = ("start", "duration", "name", "thread", "external_id", "annotation", *COLLECTIVE_COLUMNS)

# Runtime calls (`start`, `thread`) -> the Python function around each call.
Where = Callable[[Table], list[str | None]]
CODED = frozenset({"name", "collective", "dtype", "group", "group_ranks", "group_desc", "thread"})


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison of a rank's wall clock with rank 0's (ns). The offset's error is at most half the round trip."""

    time_ns: int
    offset_ns: int
    rtt_ns: int


class RankTrace(msgspec.Struct, kw_only=True):
    """The tables of one rank, from one file or from the files of several profiler cycles."""

    files: list[str]
    rank: int | None
    device: Table  # DEVICE_COLUMNS + COLLECTIVE_COLUMNS; from Kineto in order of start
    launches: Table  # LAUNCH_COLUMNS: runtime and driver calls
    host: Table  # HOST_COLUMNS: operators and annotations on CPU threads
    source: str = "kineto"  # the recorder: "kineto" or "nsys"
    world_size: int | None = None
    backend: str | None = None
    groups: dict[str, Sequence[int]] = {}  # process group -> global ranks, if the file lists them
    descriptions: dict[str, str] = {}  # process group -> what the job calls it (`pg_desc`), if the file says it
    host_id: str | None = None  # ranks with the same host_id share a clock; None: unknown
    probes: list[Probe] = []  # of this clock against rank 0's
    # False: collectives are invisible to this recorder; an empty table means unknown, not zero.
    sees_communication: bool = True
    # False: records are missing; the rank is excluded from cross-rank numbers.
    complete: bool = True
    windows: list[tuple[int, int]] = []  # of several profiler cycles: first start and last end of their device records
    notices: list[Notice] = []
    extra: dict[str, Any] = {}  # other metadata from the file


# Times beyond these are damage: from 1933 to 2116. All sums and differences of them fit 64 bits.
EARLIEST, LATEST, LONGEST = -(1 << 60), 1 << 62, 1 << 60


def plausible(trace: "RankTrace") -> "RankTrace":
    """Return the trace with times that cannot be as unknown ones, so that no computation with times overflows."""

    def checked(table: Table) -> Table:
        limits = {"start": (EARLIEST, LATEST), "duration": (-LONGEST, LONGEST)}
        for name, (low, high) in limits.items():
            good = (table[name] > low) & (table[name] < high)
            if not (good | (table[name] == UNKNOWN)).all():  # otherwise there is nothing to copy
                table = table.with_columns(**{name: np.where(good, table[name], UNKNOWN)})
        return table

    tables = {name: checked(getattr(trace, name)) for name in ("device", "launches", "host")}
    return msgspec.structs.replace(trace, **tables)


def empty_table(columns: tuple[str, ...]) -> Table:
    """Return a table with these columns and no rows."""
    types = {name: np.zeros(0, np.int32 if name in CODED else np.int64) for name in columns}
    return Table(types, {name: [] for name in columns if name in CODED})


# No job has more ranks. A larger number in a file is damage, and a list of that many ranks would fill the memory.
MAX_RANKS = 1 << 20


def rank_number(value: object) -> int | None:
    """Return `value` if it can be a rank or a number of ranks, otherwise None."""
    return value if type(value) is int and 0 <= value <= MAX_RANKS else None


def compact(ranks: list[int]) -> Sequence[int]:
    """Return a list of ranks as a range, if it is one: each of 10,000 ranks lists all of them."""
    if len(ranks) < 2 or ranks[1] <= ranks[0]:
        return ranks
    found = range(ranks[0], ranks[-1] + 1, ranks[1] - ranks[0])
    return found if len(found) == len(ranks) and list(found) == ranks else ranks


def end_of(table: Table) -> Any:
    """Return the end of each row (ns)."""
    return table["start"] + np.maximum(table["duration"], 0)


def launch_of(correlation: Column, launches: Table) -> Column:
    """Return for each correlation id the row of the call that launched it, -1 if there is none."""
    if not len(launches):
        return np.full(len(correlation), -1)
    order = np.lexsort([launches["start"], launches["correlation"]])
    ids = launches["correlation"][order]
    at = np.minimum(np.searchsorted(ids, correlation), len(ids) - 1)
    found = (ids[at] == correlation) & (correlation != UNKNOWN) & (correlation != 0)
    return np.where(found, order[at], -1)


def merge_cycles(traces: list[RankTrace]) -> RankTrace:
    """Join the profiler cycles of one rank: concatenate their tables and notices."""
    first = traces[0]
    if len(traces) == 1:
        return first
    shifted = [_namespaced(trace, index) for index, trace in enumerate(traces)]
    return msgspec.structs.replace(
        first,
        files=[file for trace in traces for file in trace.files],
        device=Table.concat([trace.device for trace in shifted], on_disk=True),
        launches=Table.concat([trace.launches for trace in shifted], on_disk=True),
        host=Table.concat([trace.host for trace in shifted], on_disk=True),
        complete=all(trace.complete for trace in traces),
        windows=sorted(window for window in map(_window, traces) if window is not None),
        notices=[notice for trace in traces for notice in trace.notices],
    )


def _window(trace: RankTrace) -> tuple[int, int] | None:
    """Return the first start and the last end of the device records; without any, of the host's; None if unknown."""
    for table in (trace.device, trace.host):
        known = (table["start"] != UNKNOWN) & (table["duration"] != UNKNOWN)
        if known.any():
            return int(table["start"][known].min()), int(end_of(table)[known].max())
    return None


def _namespaced(trace: RankTrace, index: int) -> RankTrace:
    """Make the ids unique across cycles: correlation and external ids are local to a file."""

    def shift(table: Table, *names: str) -> Table:
        moved = {name: np.where(table[name] == UNKNOWN, UNKNOWN, table[name] + (index << 48)) for name in names}
        return table.with_columns(**moved).moved()

    return msgspec.structs.replace(
        trace,
        device=shift(trace.device, "correlation", "external_id"),
        launches=shift(trace.launches, "correlation"),
        host=shift(trace.host, "external_id"),
    )
