"""What torch launches in a batch: it records each operation first, and launches all of them together afterwards.

So the record of a send or a receive of `batch_isend_irecv` is not around the launch of its kernel. It comes before the
range `nccl:coalesced` in which that kernel is launched, on the same thread, after the range before. Input: the records
of a rank's host. Output: which operations belong to each range, and what a kernel of them is.
"""

import re

import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.collective_kinds import UNKNOWN_KIND, collective_kind
from rankscope.analysis.core.name_patterns import begins
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.read.rank_trace import COLLECTIVE_COLUMNS, end_of

_BATCH = begins(re.compile(r"[a-z]+:coalesced$"))
_SUMS = ("in_nelems", "out_nelems")
_NOT_SUMMED = tuple(name for name in COLLECTIVE_COLUMNS if name not in _SUMS)


def batches(host: Table) -> Column:
    """Return the rows of `host` that launch a batch."""
    return np.flatnonzero(host.where("name", _BATCH) & (host["start"] != UNKNOWN))


def operations(host: Table, ranges: Column, launched: Column) -> dict[int, Column]:
    """Return the operations of each range, as rows of `host`; `launched` are records that launched something else."""
    records = np.flatnonzero((host["collective"] >= 0) & host.where("collective", _operates))
    records = np.setdiff1d(records, launched)
    found: dict[int, Column] = {}
    for rows in group_by.positions(host["thread"][ranges]).values():
        own = ranges[rows][np.argsort(host["start"][ranges[rows]], kind="stable")]
        mine = records[host["thread"][records] == host["thread"][own[0]]]
        mine = mine[np.argsort(host["start"][mine], kind="stable")]
        ended = end_of(host.take(own[:-1], "start", "duration"))
        low = np.searchsorted(host["start"][mine], np.append(UNKNOWN, ended))
        high = np.searchsorted(host["start"][mine], host["start"][own])
        found |= {row: mine[a:b] for row, a, b in zip(own.tolist(), low.tolist(), high.tolist(), strict=True) if b > a}
    return found


def _operates(name: str) -> bool:
    """Return whether a record is one of an operation, not of a wait for one."""
    return collective_kind(name) != UNKNOWN_KIND


def described(host: Table, own: Column) -> dict[str, int]:
    """Return the columns of a kernel that does these operations: what they have in common, and the sum of their sizes.

    Sends and receives in one batch have no direction in common, so only what is sent counts.
    """
    found = {name: int(host[name][own[0]]) for name in _NOT_SUMMED if (host[name][own] == host[name][own[0]]).all()}
    kinds = np.array([collective_kind(host.words["collective"][code]) for code in host["collective"][own].tolist()])
    counted = own if len(set(kinds.tolist())) == 1 else own[kinds == "send"]
    for name in _SUMS:
        sizes = host[name][counted]
        if len(sizes) and (sizes != UNKNOWN).all():
            found[name] = int(sizes.sum())
    return found
