"""Every event of the original traces on the corrected clock, for `rankscope timeline --full`.

Input: the traces of a recording, one rank at a time. Output: Chrome trace events in that rank's process. Times are
exact. Events that overlap on a thread without nesting move to an additional thread, because viewers would drop them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.core.json import Json
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.table import UNKNOWN
from rankscope.analysis.rank.rank_data import RankData
from rankscope.analysis.read import sources
from rankscope.analysis.read.decode import nanoseconds
from rankscope.analysis.read.kineto import reader as kineto
from rankscope.analysis.read.kineto.event_schema import Event
from rankscope.analysis.read.kineto.events import EventReader
from rankscope.analysis.result import Analysis

FIRST_THREAD = 1000  # number of the first thread of original events in a rank's process
_FLOW_IDS = 40  # bits for the ids of a rank's own flows


class WholeEvent(Event, gc=False, omit_defaults=True):
    """An event with all of Kineto's fields; `ts` stays text, so that it is exact."""

    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: Any = None
    args: Any = None
    id: Any = None
    bp: Any = None
    s: Any = None


_DECODER = msgspec.json.Decoder(list[WholeEvent])


class _Reader(EventReader):
    """Reads complete events, and repairs damaged files in the same way."""

    def _decode(self, text: bytes) -> list[Event]:
        return list(_DECODER.decode(text))


class Originals:
    """The original events of a recording."""

    def __init__(self, path: Path, analysis: Analysis) -> None:
        """Find the traces again; raises `AnalysisError` if torch.profiler did not write them."""
        if analysis.ranks[0].source != "kineto":
            raise AnalysisError(
                f"{path}: --full keeps the events of torch.profiler's traces; this is a report of Nsight Systems"
            )
        if any(source.pftrace for source in sources.find([path]).files):
            raise AnalysisError(f"{path}: --full keeps the events of JSON traces; a .pftrace already opens in Perfetto")
        self._files = {source.label: source.path for source in sources.find([path]).files}
        self._analysis = analysis

    def earliest(self, ranks: list[int]) -> int:
        """Return the first time of any event (ns, common clock)."""
        return min(int(times.min()) for rank in ranks for _, times in self._timed(rank) if len(times))

    def events(self, rank: int, origin: int) -> Iterator[list[Json | WholeEvent]]:
        """Yield the events of a rank, with unique flow ids and the original names of threads."""
        from rankscope.analysis.show.timeline.perfetto import us

        for events, times in self._timed(rank):
            threads = _Threads()
            durations = np.maximum(nanoseconds([0 if event.dur is None else event.dur for event in events]), 0)
            order = np.lexsort([-durations, times])
            block: list[Json | WholeEvent] = []
            for at in order.tolist():
                event, start, duration = events[at], int(times[at]), int(durations[at])
                spans = event.ph == "X"
                thread = threads.place(event, start, start + duration if spans else None)
                changes: Json = {"pid": rank, "tid": thread, "ts": us(start - origin)}
                if spans:
                    changes["dur"] = us(duration)
                if isinstance(event.id, int):
                    changes["id"] = ((rank + 1) << _FLOW_IDS) + event.id
                block.append(msgspec.structs.replace(event, **changes))
            yield [*threads.names(rank), *block]

    def _timed(self, rank: int) -> Iterator[tuple[list[WholeEvent], np.ndarray[Any, Any]]]:
        """Yield for each file of a rank its events that have a time, and these times on the common clock."""
        data: RankData = next(item for item in self._analysis.ranks if item.rank == rank)
        for label in data.files:
            reader = _Reader(self._files[label], label)
            events = [event for block in reader if isinstance(block, list) for event in block]
            whole = [event for event in events if isinstance(event, WholeEvent) and event.ph is not None]
            times = nanoseconds([bytes(event.ts).decode().strip('"') or None for event in whole])
            timed = (times != UNKNOWN) & np.array([event.ph != "M" for event in whole], bool)
            common = self._analysis.alignment.to_common(rank, times + kineto.base_time(reader.metadata))
            yield [event for event, kept in zip(whole, timed.tolist(), strict=True) if kept], common[timed]


class _Threads:
    """Numbers the original threads, with an additional number for each level of overlapping events."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int], int] = {}
        self._open: dict[str, list[list[int]]] = {}  # thread -> lane -> ends of the slices that are open

    def place(self, event: Event, start: int, end: int | None) -> int:
        """Return the thread number for an event. Slices must come by start; of equal starts the longest first."""
        thread = f"{event.pid} {event.tid}"
        lanes = self._open.setdefault(thread, [])
        if end is None:
            return self._number(thread, 0)
        for number, lane in enumerate(lanes):
            while lane and lane[-1] <= start:
                lane.pop()
            if not lane or end <= lane[-1]:
                lane.append(end)
                return self._number(thread, number)
        lanes.append([end])
        return self._number(thread, len(lanes) - 1)

    def _number(self, thread: str, lane: int) -> int:
        return self._numbers.setdefault((thread, lane), FIRST_THREAD + len(self._numbers))

    def names(self, rank: int) -> list[Json]:
        named = []
        for (thread, lane), number in self._numbers.items():
            args = {"name": f"original: {thread}" + (f" ({lane + 1})" if lane else "")}
            named.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": args})
            order = {"sort_index": number}
            named.append({"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": number, "args": order})
        return named
