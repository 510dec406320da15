"""Answers for hosts the questions asked about ranks, because a slow host is not a slow rank.

Input: an analysis whose ranks say where they ran. Output: one row per host; none if the hosts are unknown or there is
only one. Pure functions.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.collective_kinds import SYNCHRONISING
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.rank.rank_data import RankData

Late = dict[int, dict[int, int]]  # step -> host -> ns


def hosts_of(ranks: Sequence[RankData]) -> dict[str, list[int]]:
    """Return the ranks of each host by its name; empty if a rank does not state its host, or there is only one."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for data in ranks:
        if data.host_id is None:
            return {}
        found[data.host_id].append(data.rank)
    if len(found) < 2:
        return {}
    names = [identity.partition(" ")[2] or identity for identity in found]  # "boot-id host-name"
    if len(set(names)) < len(names):
        names = list(found)
    return dict(zip(names, found.values(), strict=True))


def spanned(hosts: dict[str, list[int]], members: Sequence[int] | None) -> int | None:
    """Return how many hosts a group of ranks spans (1: an intra-host group); None if unknown."""
    if not hosts or members is None:
        return None
    return sum(bool(set(ranks) & set(members)) for ranks in hosts.values())


def lateness(calls: Table, hosts: dict[str, list[int]]) -> Late:
    """Return for each step the lateness of each host (ns, at least 0).

    A host's lateness in a collective is how much later its first rank arrives than the median of the other hosts' first
    ranks. So one late rank does not make its host late: all ranks of a late host are late. The largest value of the
    step counts.
    """
    host_of = np.full(1 + max(rank for ranks in hosts.values() for rank in ranks), -1)
    for number, ranks in enumerate(hosts.values()):
        host_of[ranks] = number
    sync = calls.where("kind", lambda word: word in SYNCHRONISING)
    rows = np.flatnonzero(sync & (calls["lateness_ns"] != UNKNOWN) & (calls["step"] >= 0))
    call, host = calls["call"][rows], host_of[calls["rank"][rows]]
    order = np.lexsort([calls["start_ns"][rows], host, call])
    rows, call, host = rows[order], call[order], host[order]
    first = np.ones(len(rows), bool)
    first[1:] = (call[1:] != call[:-1]) | (host[1:] != host[:-1])
    rows, call, host = rows[first], call[first], host[first]
    shared = group_by.sizes(call) > 1 if len(call) else np.zeros(0, bool)
    rows, call, host = rows[shared], call[shared], host[shared]
    start = calls["start_ns"][rows]
    late: Column = start - group_by.median_of_others(start, call)
    found: Late = {}
    for step, number, amount in zip(calls["step"][rows].tolist(), host.tolist(), late.tolist(), strict=True):
        of_step = found.setdefault(step, {})
        of_step[number] = max(of_step.get(number, 0), amount)
    return found


def judge(late: Late, judged: Sequence[int], step_ns: float, bound_ns: int, limits: Limits) -> dict[int, list[int]]:
    """Return for each host its lateness (ns) in the judged steps in which it is late enough to count.

    The limits are those for a late rank. Several hosts can be late at once, for example those behind the same switch.
    """
    least = max(limits.straggler_share * step_ns, limits.straggler_errors * bound_ns + 1)
    found: defaultdict[int, list[int]] = defaultdict(list)
    for step in judged:
        for host, amount in late.get(step, {}).items():
            if amount >= least:
                found[host].append(amount)
    return dict(found)


def rows(
    ranks: Sequence[RankData],
    calls: Table,
    steps: Table,
    judged: Sequence[int],
    bound_ns: int,
    limits: Limits,
) -> list[dict[str, Any]]:
    """Return one row per host; `steps` are the analysed steps. Times are means over steps and ranks (ms)."""
    hosts = hosts_of(ranks)
    if not hosts or not len(steps):
        return []
    step_ns = float(np.median(steps["step_ns"]))
    late = judge(lateness(calls, hosts), judged, step_ns, bound_ns, limits)
    result = []
    for number, (name, members) in enumerate(hosts.items()):
        own = steps.take(np.isin(steps["rank"], members))
        waits = own["wait_ns"][own["wait_ns"] != UNKNOWN]
        amounts = late.get(number, [])
        result.append(
            {
                "host": name,
                "ranks": members,
                "step_ms": _ms(own["step_ns"]),
                "compute_ms": _ms(own["compute_ns"]),
                "wait_ms": _ms(waits) if len(waits) == len(own) else None,
                "data_stall_ms": _ms(own["data_stall_ns"]),
                "host_gap_ms": _ms(own["host_gap_ns"]),
                "lateness_ms": round(float(np.median(amounts)) * 1e-6, 4) if amounts else 0.0,
                "steps_late": len(amounts),
                "steps_judged": len(judged),
                "late": len(amounts) * 2 > len(judged),
            }
        )
    return result


def _ms(values: Column) -> float | None:
    return round(float(values.mean()) * 1e-6, 4) if len(values) else None
