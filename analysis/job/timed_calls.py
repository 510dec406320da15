"""The timed collectives of a window: the ranks' calls, matched by group and sequence number, with one duration each.

Input: `calls.json` of each rank (docs/run-folder.md). Output: `TimedCalls`, which `inspector_calls.py` makes from other
files. The shortest duration of a call over its ranks is the transfer, because the rank that came last does not wait.
What other ranks take longer is their wait.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.collective_kinds import (
    FEEDING,
    SYNCHRONISING,
    UNKNOWN_KIND,
    collective_kind,
    payload_bytes,
)
from rankscope.analysis.core.table import Column
from rankscope.analysis.core.units import ms
from rankscope.analysis.job.window import Matrix
from rankscope.conf.files import read_bytes
from rankscope.conf.run_dir import PassDir
from rankscope.conf.typed_json import Int


class RankCalls(msgspec.Struct, frozen=True, kw_only=True):
    """`calls.json` of one rank: one entry per collective, in the order of enqueueing."""

    group: list[str]
    seq: list[Int]
    kind: list[str]
    in_nelems: list[Int | None]
    out_nelems: list[Int | None]
    dtype: list[str | None]
    duration_ns: list[Int | None]  # including the wait for other ranks; null: not timed
    enqueued_ns: list[Int]  # host clock, time.time_ns
    source: str = "flight_recorder"

    def __post_init__(self) -> None:
        columns = [getattr(self, name) for name in self.__struct_fields__ if name != "source"]
        if len({len(column) for column in columns}) > 1:
            raise ValueError("its columns differ in length")


class TimedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Matched calls: one row per call, one column of `duration_ns` per rank."""

    ranks: list[int]
    group: list[str]
    kind: list[str]
    bytes: list[int | None]
    seq: list[int]
    step: Column  # -1: outside the steps
    duration_ns: Matrix  # ranks x calls; NaN: the rank does not take part

    @property
    def transfer_ns(self) -> Column:
        """The shortest duration of each call."""
        found: Column = np.nanmin(self.duration_ns, axis=0)
        return found

    @property
    def _feeding(self) -> NDArray[np.bool_]:
        """By call: whether the next layer needs its result. A rank that waits in such a call computes nothing."""
        return np.array([kind in FEEDING for kind in self.kind], bool)

    @property
    def sharing(self) -> int:
        """The smallest number of ranks that exchange their work by an all-to-all (experts); 0: none do."""
        sizes = (~np.isnan(self.duration_ns[:, [kind == "alltoall" for kind in self.kind]])).sum(axis=0)
        return int(sizes.min(initial=len(self.ranks))) if len(sizes) else 0

    def lateness(self, ranks: list[int], steps: list[int], exposed_share: float = 0.0) -> Matrix:
        """Return ranks x steps (ns): by how much a rank is later than the others of one of its groups, at least 0.

        It is the largest lateness over the calls of a group in a step. Calls that do not end for all ranks together
        (sends, broadcasts) count as little as in a trace: a stage of a pipeline waits by design.
        Lateness at a call is the median over the other ranks of their duration, minus the rank's own. The sum over
        calls would be too much: once a rank is late, the others have their later buckets ready and wait for each of
        them, which they also do if the late rank is as fast as they are from then on. Only calls whose result the
        next layer needs (`FEEDING`) add up, as far as nothing computes meanwhile: `exposed_share` of their waits.
        What the rank itself waits for others in another group is taken off: it may only be held up there. That is the
        sum over its calls, because it may be held up a little in each layer.
        """
        late = np.zeros((len(ranks), len(steps)))
        judged = np.array([kind in SYNCHRONISING or kind == UNKNOWN_KIND for kind in self.kind], bool)
        feeding = self._feeding
        names, group = np.unique(np.array(self.group, str), return_inverse=True)
        rows = [np.flatnonzero(self.step == step) for step in steps]
        for row, own in enumerate(self.ranks.index(rank) for rank in ranks):
            excess = self.lateness_at_calls(own)
            for column, at in enumerate(rows):
                amounts, held_up = np.zeros(len(names)), np.zeros(len(names))
                np.maximum.at(held_up, group[at], -excess[at])
                held_up = np.maximum(held_up, -np.bincount(group[at], excess[at], len(names)))
                np.maximum.at(amounts, group[at], np.where(judged[at], excess[at], 0.0))
                sums = np.bincount(group[at], np.where(feeding[at], excess[at], 0.0), len(names))
                amounts = np.maximum(amounts, exposed_share * sums)
                late[row, column] = max(0.0, *(amounts - _largest_of_others(held_up))) if len(names) else 0.0
        return late

    def waits_in_passes(self, ranks: list[int], steps: list[int], exposed_share: float) -> Matrix:
        """Return ranks x steps (ns): how long forward and backward of a rank wait in calls that feed them."""
        waits = exposed_share * np.nan_to_num(self.duration_ns - self.transfer_ns) * self._feeding
        rows = [np.flatnonzero(self.step == step) for step in steps]
        return np.array([[waits[self.ranks.index(rank), at].sum() for at in rows] for rank in ranks])

    def lateness_at_calls(self, own: int) -> Column:
        """Return by call the lateness of the rank at position `own` (ns); 0 where the rank does not take part."""
        others = np.delete(self.duration_ns, own, 0)
        known = ~np.isnan(others).all(0) & ~np.isnan(self.duration_ns[own])
        excess = np.zeros(len(self.step))
        excess[known] = np.nanmedian(others[:, known], axis=0) - self.duration_ns[own, known]
        return excess


def _largest_of_others(values: Column) -> Column:
    """Return for each value the largest of the others; 0 if there are none."""
    if len(values) < 2:
        return np.zeros(len(values))
    first, second = np.sort(values)[-1], np.sort(values)[-2]
    found: Column = np.where(np.arange(len(values)) == values.argmax(), second, first)
    return found


def read_calls(pass_dir: PassDir) -> dict[int, RankCalls]:
    """Read every valid `calls.json`, by rank."""
    found = {}
    for rank_dir in pass_dir.ranks():
        try:
            found[rank_dir.rank] = msgspec.json.decode(read_bytes(rank_dir.calls), type=RankCalls)
        except (OSError, ValueError, RecursionError):
            continue
    return found


def match(calls: Mapping[int, RankCalls], starts: Mapping[int, tuple[Column, Column]]) -> TimedCalls:
    """Match the calls of all ranks. `starts` has each rank's step numbers and their starts (time.time_ns), ascending.

    A call belongs to the step in which its lowest rank enqueued it.
    """
    ranks = sorted(set(calls) & set(starts))
    keys: dict[tuple[str, int, str], dict[int, int]] = {}
    for rank in ranks:
        own = calls[rank]
        for row, key in enumerate(zip(own.group, own.seq, own.kind, strict=True)):
            if (own.duration_ns[row] or 0) > 0:
                keys.setdefault(key, {})[rank] = row
    kept = {key: rows for key, rows in keys.items() if len(rows) > 1}
    duration = np.full((len(ranks), len(kept)), np.nan)
    step = np.full(len(kept), -1)
    sizes: list[int | None] = []
    for column, rows in enumerate(kept.values()):
        for rank, row in rows.items():
            duration[ranks.index(rank), column] = calls[rank].duration_ns[row]
        first = min(rows)
        numbers, begins = starts[first]
        at = int(np.searchsorted(begins, calls[first].enqueued_ns[rows[first]], side="right")) - 1
        step[column] = numbers[at] if at >= 0 else -1
        sizes.append(_bytes(calls[first], rows[first]))
    return TimedCalls(
        ranks=ranks,
        group=[group for group, _, _ in kept],
        kind=[collective_kind(kind) for _, _, kind in kept],
        bytes=sizes,
        seq=[seq for _, seq, _ in kept],
        step=step,
        duration_ns=duration,
    )


def _bytes(calls: RankCalls, row: int) -> int | None:
    kind = collective_kind(calls.kind[row])
    return payload_bytes(kind, calls.dtype[row], calls.in_nelems[row], calls.out_nelems[row])


def by_size(calls: TimedCalls) -> list[dict[str, Any]]:
    """Return a row per group, kind and size: count, and medians over calls of transfer and wait (ms)."""
    groups: dict[tuple[str, str, int | None], list[int]] = {}
    for row, key in enumerate(zip(calls.group, calls.kind, calls.bytes, strict=True)):
        if calls.step[row] >= 0:
            groups.setdefault(key, []).append(row)
    transfer = calls.transfer_ns
    rows = []
    for (group, kind, size), at in groups.items():
        waits = calls.duration_ns[:, at] - transfer[at]
        rows.append(
            {
                "group": group,
                "kind": kind,
                "bytes": size,
                "count": len(at),
                "transfer_ms_p50": ms(np.median(transfer[at])),
                "wait_ms_p50": ms(np.nanmedian(waits)),
            }
        )
    return sorted(rows, key=lambda row: -row["count"] * row["transfer_ms_p50"])
