"""The allocator's memory over time, for runs with `profile.profile_memory`: a table and a figure.

torch.profiler writes an instant event `[memory]` at each allocation and release, with the totals after it. The GPU's
events are used if there are some, otherwise the CPU's, which count only allocations through torch.
"""

from typing import Any

import numpy as np

from rankscope.analysis.core.notices import UnreadableTraceError
from rankscope.analysis.core.table import Column, Table
from rankscope.analysis.measure.recording import Recording
from rankscope.analysis.read.decode import integers, nanoseconds
from rankscope.analysis.read.kineto.event_schema import Args, Event
from rankscope.analysis.read.kineto.events import EventReader
from rankscope.analysis.read.kineto.reader import base_time
from rankscope.conf.run_dir import RankDir

CPU, GPU = 0, 1  # torch's DeviceType
RANKS = 8  # the late rank and others, as in the tables by name
_NONE = Args()
_BINS = 2000  # of the figure, which shows the maximum of each
_KINDS = ["CPU", "GPU"]


def memory_timeline(recording: Recording) -> Table | None:
    """Return one row per change of a rank's memory, in order; None if none was recorded."""
    if recording.run_dir is None:
        return None
    late = recording.verdict.rank
    ranks = sorted(recording.run_dir.detailed.ranks(), key=lambda item: (item.rank != late, item.rank))
    parts = [part for part in (_of_rank(recording, rank) for rank in ranks[:RANKS]) if part is not None]
    return Table.concat(sorted(parts, key=lambda part: int(part["rank"][0]))) if parts else None


def _of_rank(recording: Recording, rank_dir: RankDir) -> Table | None:
    if not rank_dir.trace.exists():
        return None
    reader = EventReader(rank_dir.trace)
    found: list[Event] = []
    try:
        for block in reader:
            if isinstance(block, list):
                found += [event for event in block if event.name == "[memory]"]
    except UnreadableTraceError:
        return None  # the analysis has already reported this
    args = [event.args or _NONE for event in found]
    device = integers(item.device_type for item in args)
    chosen = GPU if (device == GPU).any() else CPU
    rows = np.flatnonzero(device == chosen)
    if not len(rows):
        return None
    times = nanoseconds([found[row].ts for row in rows]) + base_time(reader.metadata)
    return Table(
        {
            "rank": np.full(len(rows), rank_dir.rank),
            "time_ns": recording.alignment.to_common(rank_dir.rank, times),
            "allocated_bytes": integers(args[row].allocated for row in rows),
            "reserved_bytes": integers(args[row].reserved for row in rows),
            "device": np.full(len(rows), chosen, np.int32),
        },
        {"device": _KINDS},
    ).sort("time_ns")


def figure(table: Table, starts: Column) -> Any:
    """Return the figure of each rank's allocated memory over time; `starts` (ns) are the steps', drawn as lines."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(7.0, 3.6), layout="constrained")
    axes = drawn.add_subplot()
    axes.set_title(f"Memory allocated on the {table.texts('device')[0]}", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    origin = int(min(table["time_ns"].min(), starts.min(initial=table["time_ns"].min())))
    for rank in np.unique(table["rank"]).tolist():
        own = table.take(table["rank"] == rank)
        at, most = _peaks((own["time_ns"] - origin) * 1e-6, own["allocated_bytes"] / 1e9)
        axes.plot(at, most, drawstyle="steps-post", linewidth=1.0, label=f"rank {rank}")
    for start in np.unique(starts).tolist():
        axes.axvline((start - origin) * 1e-6, color="#999999", linewidth=0.6, linestyle=":")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("ms (dotted: a step begins)")
    axes.set_ylabel("GB")
    axes.legend(frameon=False, fontsize=8, ncols=2)
    return drawn


def _peaks(times: Column, values: Column) -> tuple[Column, Column]:
    """Return the maximum of each time bin, so that no peak is lost between two points of the figure."""
    if len(times) <= _BINS:
        return times, values
    places = np.minimum(((times - times[0]) / max(times[-1] - times[0], 1e-9) * _BINS).astype(int), _BINS - 1)
    first = np.unique(places, return_index=True)[1]
    return times[first], np.maximum.reduceat(values, first)
