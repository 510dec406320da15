"""The ranks' clocks according to the recorded clock probes: independent evidence next to the ends of collectives.

Input: `RankData` with probes from before and after the window. Output: `Probed`, each host's clock as a line.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from rankscope.analysis.core.notices import Notice
from rankscope.analysis.rank.rank_data import RankData

_STEPPED = 1_000_000_000  # ns; a quartz drifts by less in an hour


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's clock minus rank 0's: `offset_ns` at `origin`, changing by `drift`. The error is at most `error_ns`."""

    origin: int
    offset_ns: int
    drift: float
    error_ns: int

    def at(self, time_ns: int) -> int:
        """Return the offset at a time of the rank's own clock (ns)."""
        return self.offset_ns + round((time_ns - self.origin) * self.drift)


def probed(ranks: Sequence[RankData]) -> dict[int, Probed]:
    """Return each rank's clock from the probes of its host; empty if a rank has no probes or rank 0 is missing."""
    if not ranks or min(data.rank for data in ranks) != 0 or not all(data.probes for data in ranks):
        return {}
    hosts: defaultdict[Any, list[RankData]] = defaultdict(list)
    for data in ranks:
        hosts[data.rank if data.host_id is None else data.host_id].append(data)
    found = {}
    for members in hosts.values():
        own = any(data.rank == 0 for data in members)
        best = min(members, key=lambda data: max(probe.rtt_ns for probe in data.probes))
        for data in members:
            line = _line(data)
            found[data.rank] = msgspec.structs.replace(line, offset_ns=0, drift=0.0) if own else _line(best)
    return found


def _line(data: RankData) -> Probed:
    """Return the line through a rank's first and last probe. The slope is used only if it exceeds their errors."""
    first, last = min(data.probes, key=lambda p: p.time_ns), max(data.probes, key=lambda p: p.time_ns)
    error = max(first.rtt_ns, last.rtt_ns) // 2
    moved, span = last.offset_ns - first.offset_ns, last.time_ns - first.time_ns
    drift = moved / span if span > 0 and abs(moved) > (first.rtt_ns + last.rtt_ns) / 2 else 0.0
    middle = (first.time_ns + last.time_ns) // 2
    return Probed(origin=middle, offset_ns=(first.offset_ns + last.offset_ns) // 2, drift=drift, error_ns=error)


def stepped(ranks: Sequence[RankData]) -> list[Notice]:
    """Return a notice for each rank whose clock was set while it recorded: no line through its probes is right then."""
    found = []
    for data in ranks:
        offsets = [probe.offset_ns for probe in data.probes]  # as written: a clock that is set back orders them wrongly
        moved = offsets[-1] - offsets[0] if offsets else 0
        if abs(moved) > _STEPPED:
            text = (
                f"rank {data.rank}: its clock was set by {moved * 1e-9:+.1f} s against rank 0's during the recording; "
                "its times before and after cannot be compared; keep clocks in step by NTP and record again"
            )
            found.append(Notice(kind="clock_stepped", rank=data.rank, message=text))
    return found


def shared_clock_error(ranks: Sequence[RankData]) -> int | None:
    """Return how far the ranks of one host can be from one clock (ns), from their probes; None if a rank has none."""
    if not all(data.probes for data in ranks):
        return None
    return max(abs(probe.offset_ns) + probe.rtt_ns for data in ranks for probe in data.probes)
