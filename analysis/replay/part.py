"""`Part`: the points and edges of one rank while the graph is built."""

import msgspec
import numpy as np

from rankscope.analysis.core.table import Column

FIELDS = ("source", "target", "weight", "delay", "work", "step", "name", "bytes")


class Part(msgspec.Struct, kw_only=True):
    """The points of one rank by number, and lists of edges between them."""

    time: Column
    starts: Column  # the point at which each record starts
    finishes: Column  # the point at which each record ends
    ends: Column  # of each point, what it may end: see `Graph.ends`
    edges: dict[str, list[Column]] = {}
    dropped: int = 0

    def add(self, **columns: Column | int) -> None:
        """Add edges. One that the recorded times contradict is left out; work that is longer is cut to the time."""
        size = np.size(columns["source"])
        full = {name: np.broadcast_to(np.asarray(columns.get(name, 0)), (size,)) for name in FIELDS}
        between = self.time[full["target"]] - self.time[full["source"]]
        possible = between >= 0
        self.dropped += int((~possible).sum())
        full["weight"] = np.minimum(full["weight"], between)
        for name, column in full.items():
            self.edges.setdefault(name, []).append(np.asarray(column[possible], np.int64))

    def added(self, name: str) -> Column:
        return np.concatenate(self.edges[name]) if self.edges.get(name) else np.zeros(0, np.int64)
