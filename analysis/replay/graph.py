"""`Graph`: instants of all ranks and the work between them, and its replay.

A point is an instant at which something starts or ends: a runtime call, a device record, the moment when the last rank
has come to a collective. An edge says that its target cannot come before its source and the edge's work. A point comes
when the last of its edges is done. So the replay with the recorded work gives the recorded times, and with changed
work the times that follow.
"""

from enum import IntEnum
from functools import cached_property

import msgspec
import numpy as np

from rankscope.analysis.core.table import Column

NONE = -1
NEVER = np.iinfo(np.int64).max // 8  # slack of work that no counted step depends on; ns


class Work(IntEnum):
    """What the time of an edge is."""

    HOST = 0  # Python and C++ between two runtime calls
    LOADER = 1  # waiting for a batch
    LAUNCH = 2  # inside a runtime call
    LATENCY = 3  # from a launch to the first instant at which its record can start, and between records of a stream
    COMPUTE = 4
    COPY = 5
    TRANSFER = 6  # a collective, from the moment at which its last rank has come
    COMMUNICATION = 7  # a collective whose partners are unknown: wait and transfer together
    SYNC = 8  # from the end of a device record to the return of the call that waited for it
    ORDER = 9  # no work: the target only comes after the source
    UNEXPLAINED = 10  # the device was idle, and no recorded dependency says why
    MEMORY = 11  # the host after a copy that is not pinned: it handles that memory, or works on something else


class Edges(msgspec.Struct, frozen=True, kw_only=True):
    """Columns with a row per edge, sorted by target. `name` is a code into `Graph.names`."""

    source: Column
    target: Column
    weight: Column  # ns
    delay: Column  # ns, unexplained: the same for all edges of a target
    work: Column
    rank: Column
    step: Column
    name: Column
    call: Column  # number of the collective call; NONE
    bytes: Column  # payload of the collective
    size: Column  # ranks of the collective; 0 for other work

    def __len__(self) -> int:
        return len(self.source)


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """Columns with a row per device record, in order of start within a rank."""

    rank: Column
    role: Column  # record_kinds: COMPUTE, COMMUNICATION, COPY
    name: Column
    step: Column
    start: Column  # point
    end: Column  # point
    edge: Column  # its work; NONE for a collective with known partners


class Graph(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Points in an order in which every edge goes forward, and the edges between them."""

    origin: int  # of `time`: ns on the common clock
    time: Column  # ns from the first point, as recorded
    rank: Column
    ends: Column  # the boundary that a point may set: 0 before the first step that counts, i after the i-th; NONE
    begins: int  # when the first step that counts begins, for a recording without any work before it
    edges: Edges
    records: Records
    names: list[str]
    steps: list[int]  # the steps whose length counts, in order
    dropped: int  # edges that the recorded times contradict
    reasons: list[str]  # what is missing, and what does not follow therefore

    def __len__(self) -> int:
        return len(self.time)

    @cached_property
    def _roots(self) -> list[int]:
        """When points without an edge come, as they were recorded; earlier than all points for the others."""
        rooted = np.ones(len(self.time), bool)
        rooted[self.edges.target] = False
        lowest = int(self.time.min(initial=0)) - 1
        found: list[int] = np.where(rooted, self.time, lowest).tolist()
        return found

    @cached_property
    def _ways(self) -> tuple[list[int], list[int]]:
        """Source and target of each edge, as lists, which a loop in Python reads faster."""
        return self.edges.source.tolist(), self.edges.target.tolist()

    def replay(self, weight: Column | None = None, delay: Column | None = None) -> Column:
        """Return the time of each point (ns) with these weights and delays of the edges (default: the recorded)."""
        weight = self.edges.weight if weight is None else weight
        delay = self.edges.delay if delay is None else delay
        times = self._roots.copy()
        for source, target, after in zip(*self._ways, (weight + delay).tolist(), strict=True):
            came = times[source] + after
            if came > times[target]:
                times[target] = came
        return np.array(times, np.int64)

    def boundaries(self, times: Column) -> Column:
        """Return when the last rank has ended the work before the first step that counts, and of each step (ns)."""
        found = np.full(len(self.steps) + 1, np.iinfo(np.int64).min)
        known = self.ends != NONE
        np.maximum.at(found, self.ends[known], times[known])
        if not (self.ends == 0).any():
            found[0] = self.begins
        return np.asarray(np.maximum.accumulate(found))

    def step_ns(self, times: Column) -> float:
        """Return the mean length of the steps that count (ns), from the last rank's end to the next."""
        found = self.boundaries(times)
        return float(found[-1] - found[0]) / len(self.steps)

    def explained_ns(self) -> float:
        """Return the mean step (ns) that the recorded work gives without idle time that nothing explains."""
        counted = np.isin(self.edges.step, self.steps)
        return self.step_ns(self.replay(delay=np.where(counted, 0, self.edges.delay)))

    def binding(self, times: Column, weight: Column | None = None, delay: Column | None = None) -> Column:
        """Return for each point the edge that decides when it comes; NONE for a root."""
        weight = self.edges.weight if weight is None else weight
        delay = self.edges.delay if delay is None else delay
        decides = times[self.edges.source] + weight + delay == times[self.edges.target]
        found = np.full(len(times), NONE)
        rows = np.flatnonzero(decides)
        found[self.edges.target[rows]] = rows
        return found

    def slack(self, times: Column, weight: Column | None = None, delay: Column | None = None) -> Column:
        """Return by how much each edge's work could grow (ns) before the last step that counts ends later."""
        weight = self.edges.weight if weight is None else weight
        delay = self.edges.delay if delay is None else delay
        last = int(self.boundaries(times)[-1])
        never = 2 * NEVER
        latest = np.where(self.ends > 0, last, never).tolist()
        after = (weight + delay).tolist()
        source, target = self._ways
        for row in range(len(after) - 1, -1, -1):
            allowed = latest[target[row]] - after[row]
            if allowed < latest[source[row]]:
                latest[source[row]] = allowed
        limit = np.array(latest, np.int64)
        free = limit[self.edges.target] - times[self.edges.source] - np.array(after, np.int64)
        return np.where(limit[self.edges.target] >= NEVER, never, free)
