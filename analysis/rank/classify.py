"""Classifies the communication records: their kind and role, and the metadata of the CPU record that launched them.

Input: a rank's device records and the operators and annotations of its host. Output: the records with the collective
columns, kind and role filled in.
"""

import numpy as np

from rankscope.analysis.core.collective_kinds import (
    UNKNOWN_KIND,
    collective_kind,
    has_shapes,
    is_communication,
    launches_collective,
)
from rankscope.analysis.core.record_kinds import COMMUNICATION, COMPUTE, COPY, KERNEL
from rankscope.analysis.core.table import UNKNOWN, Column, Table, encode
from rankscope.analysis.read.rank_trace import COLLECTIVE_COLUMNS, end_of

_NESTING = 8  # nested records and those of other threads that may lie between a launch and the record around it


def with_cpu_metadata(table: Table, host: Table) -> Table:
    """Give communication kernels without metadata that of the CPU record that launched them, if there is one.

    The record is found by its External id, otherwise as the innermost one around the launch call.
    """
    is_comm = table.where("name", is_communication)
    bare = np.flatnonzero(is_comm & (table["collective"] < 0))
    described = _launching_record(table, bare, host, host["collective"] >= 0)
    columns = {name: table[name].copy() for name in (*COLLECTIVE_COLUMNS, "described")}
    found = described >= 0
    for name in COLLECTIVE_COLUMNS:
        columns[name][bare[found]] = _recode(table, host, name)[described[found]]
    columns["described"][bare[found]] = 1
    _fill_sizes(columns, table, bare[~found], host)
    named = host.where("name", launches_collective)
    annotation = _launching_record(table, bare, host, named)
    hint = np.full(len(table), -1, np.int32)
    hint[bare] = np.where(annotation >= 0, host["name"][annotation] if len(host) else -1, -1)
    return Table({**table.columns, **columns, "hint": hint}, {**table.words, "hint": host.words["name"]})


def _fill_sizes(columns: dict[str, Column], table: Table, bare: Column, host: Table) -> None:
    """Give communication kernels without metadata the element count and type of the record around their launch."""
    sized = host.where("name", has_shapes) & (host["in_nelems"] != UNKNOWN)
    around = _launching_record(table, bare, host, sized)
    for name in ("in_nelems", "dtype"):
        columns[name][bare[around >= 0]] = _recode(table, host, name)[around[around >= 0]]


def _recode(table: Table, host: Table, name: str) -> Column:
    """Return a column of `host` in the codes of `table`. Both come from one reader and share their codes."""
    if name in table.words and host.words[name] != table.words[name]:
        raise AssertionError(f"column {name} has two dictionaries")
    return host[name]


def _launching_record(table: Table, rows: Column, host: Table, chosen: Column) -> Column:
    """Return for each of `rows` the chosen host record that launched it, -1 if there is none."""
    sources = np.flatnonzero(chosen & (host["start"] != UNKNOWN))
    if not len(rows) or not len(sources):
        return np.full(len(rows), -1)
    ids, first, count = np.unique(host["external_id"][sources], return_index=True, return_counts=True)
    wanted = table["external_id"][rows]
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    by_id = (ids[at] == wanted) & (count[at] == 1) & (wanted != UNKNOWN)
    inner = _innermost(table["launch_start"][rows], table["launch_thread"][rows], host, sources)
    return np.where(by_id, sources[first[at]], inner)


def _innermost(times: Column, threads: Column, host: Table, sources: Column) -> Column:
    """Return the innermost of `sources` around each time on its thread, -1 if there is none."""
    sources = sources[np.argsort(host["start"][sources], kind="stable")]
    start, end, thread = host["start"][sources], end_of(host)[sources], host["thread"][sources]
    result = np.full(len(times), -1)
    at = np.searchsorted(start, times, "right") - 1
    for back in range(_NESTING):
        index = np.maximum(at - back, 0)
        holds = (at >= back) & (times < end[index]) & (thread[index] == threads) & (times != UNKNOWN)
        result = np.where((result < 0) & holds, sources[index], result)
    return result


def classify(table: Table) -> tuple[Column, list[str], Column]:
    """Return (collective kind as codes, the words of the codes, role) of each record."""
    is_comm = table.where("name", is_communication)
    kernel = table["activity"] == KERNEL
    comm = kernel & (is_comm | (table["collective"] >= 0))
    role = np.where(kernel, np.where(comm, COMMUNICATION, COMPUTE), COPY)
    kinds: list[str | None] = [None] * len(table)
    lookup: dict[tuple[int, int, int], str] = {}
    hints = table["hint"]
    for row in np.flatnonzero(comm).tolist():
        key = (int(table["collective"][row]), int(hints[row]), int(table["name"][row]))
        if key not in lookup:
            lookup[key] = _kind_of(table, *key)
        kinds[row] = lookup[key]
    codes, words = encode(kinds)
    return codes, words, role


def _kind_of(table: Table, collective: int, hint: int, name: int) -> str:
    for code, column in ((collective, "collective"), (hint, "hint"), (name, "name")):
        if code >= 0:
            kind = collective_kind(table.words[column][code])
            if kind != UNKNOWN_KIND:
                return kind
    return UNKNOWN_KIND
