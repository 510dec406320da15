"""Pairs sends with receives: of two ranks and one direction, in order, step by step.

Input: the communication records of all ranks, with `group_id`. Output: the number of each record's call, -1 for all
that are no send or receive, or whose partner is unknown. The other rank is told by the record, or by a group of two. In
one direction messages do not overtake one another, so the k-th send of a step belongs to the k-th receive. If the two
ranks have different numbers of them in a step, or sizes that contradict, the step's are left unpaired.
"""

from collections import defaultdict

import numpy as np

from rankscope.analysis.align.groups import group_members
from rankscope.analysis.core.collective_kinds import POINT_TO_POINT
from rankscope.analysis.core.table import UNKNOWN, Column, Table

_Key = tuple[int, int, int, int, bool]  # group, step, from, to, whether it is a batch of sends and receives


def pair(records: Table) -> Column:
    """Return the number of the call of each send and receive, from 0 on; -1 for all other records."""
    result = np.full(len(records), -1)
    sends: defaultdict[_Key, list[int]] = defaultdict(list)
    receives: defaultdict[_Key, list[int]] = defaultdict(list)
    kinds = records.texts("kind")
    for row in np.flatnonzero(of_kind(records)).tolist():
        rank, peer = int(records["rank"][row]), _peer(records, row)
        if peer is None or peer == rank:
            continue
        group, step = int(records["group_id"][row]), int(records["step"][row])
        if kinds[row] == "sendrecv":  # one kernel for both directions: the lower rank counts as the sender
            side = sends if rank < peer else receives
            side[group, step, min(rank, peer), max(rank, peer), True].append(row)
        elif kinds[row] == "send":
            sends[group, step, rank, peer, False].append(row)
        else:
            receives[group, step, peer, rank, False].append(row)
    following = 0
    for key, own in sends.items():
        partners = receives.get(key, [])
        if len(own) != len(partners) or _contradict(records, own, partners):
            continue
        numbers = following + np.arange(len(own))
        result[own], result[partners] = numbers, numbers
        following += len(own)
    return result


def of_kind(records: Table) -> Column:
    """Return which records are sends or receives."""
    return records.where("kind", lambda word: word in POINT_TO_POINT)


def _peer(records: Table, row: int) -> int | None:
    told = int(records["peer"][row])
    if told != UNKNOWN:
        return told
    members = group_members(records.words["group_id"][records["group_id"][row]])
    others = [rank for rank in members or () if rank != records["rank"][row]] if members and len(members) == 2 else []
    return others[0] if len(others) == 1 else None


def _contradict(records: Table, sends: list[int], receives: list[int]) -> bool:
    """Return whether the sizes of sends and receives differ; unknown sizes agree with any."""
    one, other = records["bytes"][sends], records["bytes"][receives]
    known = (one != UNKNOWN) & (other != UNKNOWN)
    return bool((one[known] != other[known]).any())
