"""What a rank did before a late collective, compared with the others: the causes of lateness.

Input: the collectives' table and the ranks' own intervals. Output: excess times by cause, and whether a rank was held
up by another. Definitions: docs/metrics.md, "Cause".
"""

from collections.abc import Collection, Sequence

import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.collective_kinds import SYNCHRONISING
from rankscope.analysis.core.intervals import either, measure, union
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.rank.rank_data import RankData

CAUSES = ("compute", "data", "host", "copy", "earlier_comm")


class Explainer:
    """Breaks the segment before a late collective down into causes, on every rank that takes part in it."""

    def __init__(self, calls: Table, ranks: Sequence[RankData], lossy: Collection[int]) -> None:
        self._calls = calls
        self._lossy = lossy  # steps with missing records on some rank: what ranks did in them is unknown
        self._ranks = {data.rank: data for data in ranks}
        sync = calls.where("kind", lambda word: word in SYNCHRONISING)
        self._usable = sync & (calls["ready_ns"] != UNKNOWN) & (calls["group_size"] != 1)
        self._of_rank = group_by.positions(calls["rank"])
        self._layers: dict[int, list[Column]] = {}

    def _of_call(self, call: int) -> Column:
        """Return the rows of a call (the table is sorted by call)."""
        low, high = np.searchsorted(self._calls["call"], [call, call + 1])
        return np.arange(low, high)

    def __call__(self, row: int) -> dict[str, int]:
        """Return by cause how much longer this rank's segment is than the median of the others'."""
        parts = self.parts(row)
        if parts is None:
            return dict.fromkeys(CAUSES, 0)
        own = parts.pop(int(self._calls["rank"][row]))
        return {
            cause: int(own[index] - np.median([part[index] for part in parts.values()]))
            for index, cause in enumerate(CAUSES)
        }

    def parts(self, row: int) -> dict[int, list[int]] | None:
        """Return by rank the lengths (ns) of `CAUSES` in the segment before this call; None if records are missing."""
        calls = self._calls
        rows = self._of_call(int(calls["call"][row]))
        previous = self._previous(row, calls["rank"][rows])
        step = int(calls["step"][row])
        # Without a previous collective the segment begins with the step: where the step before ended on the device.
        begin = int(calls["step"][self._of_call(previous)[0]]) if previous is not None else step - 1
        if any(begin <= lossy <= step for lossy in self._lossy):
            return None
        ends: dict[int, int] = {}
        if previous is not None:
            before = self._of_call(previous)
            ends = dict(zip(calls["rank"][before].tolist(), calls["end"][before].tolist(), strict=True))
        return {int(calls["rank"][other]): self._segment(int(other), ends) for other in rows}

    def held_up(self, row: int, late: Collection[int], steps: Table, least: float) -> bool:
        """Return whether this rank is late at a call only because it waited for one of the late ranks.

        It waited for one in another group, in this step or the one before, and its own time in this step, without its
        waits, is not longer than the others' by a third of its lateness.
        """
        calls, rank, step = self._calls, int(self._calls["rank"][row]), int(self._calls["step"][row])
        rows = self._of_rank[rank]
        rows = rows[self._usable[rows] & (calls["step"][rows] >= step - 1) & (calls["step"][rows] <= step)]
        rows = rows[(calls["group_id"][rows] != calls["group_id"][row]) & (calls["start"][rows] < calls["start"][row])]
        for waiting in rows[calls["wait_ns"][rows] >= least].tolist():
            members = self._of_call(int(calls["call"][waiting]))
            last = int(calls["rank"][members[np.argmax(calls["start_ns"][members])]])
            if last in late and last != rank:
                return bool(_own_excess(steps, step, rank) < calls["lateness_ns"][row] / 3)
        return False

    def _previous(self, row: int, members: Column) -> int | None:
        """Return the last synchronising collective of all members that ended before this one began; None if none."""
        calls = self._calls
        mine = self._of_rank[int(calls["rank"][row])]
        mine = mine[self._usable[mine]]
        mine = mine[calls["end"][mine] <= calls["start"][row]]
        for candidate in mine[np.argsort(-calls["end"][mine])].tolist():
            call = calls["call"][candidate]
            if np.isin(members, calls["rank"][self._of_call(int(call))]).all():
                return int(call)
        return None

    def _segment(self, row: int, ends: dict[int, int]) -> list[int]:
        """Return the lengths (ns) of compute, data stall, host gap, copy and earlier communication before a row."""
        calls, rank = self._calls, int(self._calls["rank"][row])
        data = self._ranks[rank]
        end = calls["start"][row : row + 1]
        if ends:  # the segment begins where the previous collective ended
            start = np.array([ends[rank]])
        else:
            start = data.steps["start"][data.steps["step"] == calls["step"][row]]
        if not len(start):
            return [0] * len(CAUSES)  # the rank has no such step
        start = np.minimum(start, end)
        compute, comm, copy, stall = (int(measure(layer, start, end)[0]) for layer in self._layers_of(rank))
        host = int(end[0] - start[0]) - stall
        return [compute, stall - copy, host, copy - comm, comm - compute]

    def _layers_of(self, rank: int) -> list[Column]:
        """Return the cumulative unions: compute, with communication, with copies, with data waits."""
        if rank not in self._layers:
            data, calls = self._ranks[rank], self._calls
            mine = self._of_rank[rank]
            layers = [data.compute]
            for layer in (union(calls["start"][mine], calls["end"][mine]), data.copies, data.data_wait):
                layers.append(either(layers[-1], layer))
            self._layers[rank] = layers
        return self._layers[rank]


def _own_excess(steps: Table, step: int, rank: int) -> float:
    """Return how much longer this rank's step without exposed waits is than the median of the others' (ns)."""
    rows = steps.take(steps["step"] == step)
    own = rows["step_ns"] - np.where(rows["exposed_wait_ns"] == UNKNOWN, 0, rows["exposed_wait_ns"])
    mine = rows["rank"] == rank
    return float(own[mine].sum() - np.median(own[~mine])) if mine.any() and not mine.all() else 0.0
