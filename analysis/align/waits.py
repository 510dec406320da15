"""Separates wait from transfer for every record of a matched collective.

Input: matched calls and an alignment. Output: the same table with common times and, per row, `ready_ns` (when the last
rank had arrived), `wait_ns`, `transfer_ns`, `transfer_clockfree_ns`, `lateness_ns`. They are `UNKNOWN` if a member rank
is missing or the record has no partner.
"""

import numpy as np

from rankscope.analysis.align.clock import Alignment, on_common_clock
from rankscope.analysis.align.groups import group_members
from rankscope.analysis.core import group_by
from rankscope.analysis.core.collective_kinds import POINT_TO_POINT, SYNCHRONISING
from rankscope.analysis.core.table import UNKNOWN, Column, Table

_CLOCK_NS = 1_000_000  # by which a receive may seem to end before its send starts


def split_waits(calls: Table, alignment: Alignment, present: frozenset[int]) -> Table:
    """Return `calls` with the columns above. `present` are the ranks that were read completely."""
    start, end = on_common_clock(alignment, calls)
    known = _known(calls, alignment, present)
    call, blank = calls["call"], np.full(len(calls), UNKNOWN)
    ready, clockfree, lateness = blank.copy(), blank.copy(), blank.copy()
    if known.any():
        rows = np.flatnonzero(known)  # calls are sorted, so the rows of one call are adjacent
        last = group_by.highest(start[rows], call[rows])
        # Some collectives can end on one rank before another has arrived (for example on a broadcast's root), and a
        # send before its receive. That rank waited at most for the length of its own record.
        synchronising = _of_kind(calls, SYNCHRONISING)[rows]
        ready[rows] = np.where(synchronising, last, np.minimum(last, end[rows]))
        clockfree[rows] = group_by.lowest((end - start)[rows], call[rows])
        late = start[rows] - group_by.median_of_others(start[rows], call[rows])
        # A receive is often started long before its send: that is the schedule's, and neither rank is late.
        lateness[rows] = np.where(_of_kind(calls, POINT_TO_POINT)[rows], UNKNOWN, late)
    wait = np.where(known, ready - start, UNKNOWN)
    transfer = np.where(known, end - ready, UNKNOWN)
    return calls.with_columns(
        start_ns=start,
        end_ns=end,
        ready_ns=ready,
        wait_ns=wait,
        transfer_ns=transfer,
        transfer_clockfree_ns=clockfree,
        lateness_ns=lateness,
        matched=calls["call"] >= 0,
    )


def _of_kind(calls: Table, kinds: frozenset[str]) -> Column:
    return calls.where("kind", lambda word: word in kinds)


def _known(calls: Table, alignment: Alignment, present: frozenset[int]) -> Column:
    """Return a mask of the rows whose call has every member of its group, all of them on the common clock.

    A send and its receive need only their two ranks.
    """
    whole = np.zeros(len(calls.words["group_id"]) + 1, bool)
    for code, word in enumerate(calls.words["group_id"]):
        members = group_members(word)
        whole[code] = members is not None and set(members) <= present and not set(members) & alignment.unaligned
    single = calls["group_size"] == 1
    messages = _of_kind(calls, POINT_TO_POINT)
    placed = np.isin(calls["rank"], sorted(present - alignment.unaligned))
    both = (group_by.lowest(placed.astype(np.int64), calls["call"]) == 1) & _in_order(calls, alignment)
    return np.asarray((calls["call"] >= 0) & np.where(messages, both, whole[calls["group_id"]] | single))


def _in_order(calls: Table, alignment: Alignment) -> Column:
    """Return for each record whether the receives of its call end after its sends start, but for errors of clocks."""
    start, end = on_common_clock(alignment, calls)
    sends = calls.where("kind", lambda word: word in ("send", "sendrecv"))
    receives = calls.where("kind", lambda word: word in ("recv", "sendrecv"))
    limits = np.iinfo(np.int64)
    sent = group_by.highest(np.where(sends, start, limits.min), calls["call"])
    received = group_by.lowest(np.where(receives, end, limits.max), calls["call"])
    return np.asarray(received >= np.maximum(sent, limits.min + _CLOCK_NS) - _CLOCK_NS)
