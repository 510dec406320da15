"""Classifies the communication records: their kind and role, and the metadata of the CPU record that launched them.

Input: a rank's device records and the operators and annotations of its host. Output: the records with the collective
columns, kind and role filled in.
"""

from collections import defaultdict
from typing import Any

import numpy as np

from rankscope.analysis.core.collective_kinds import (
    UNKNOWN_KIND,
    collective_kind,
    has_shapes,
    is_communication,
    is_of_collective,
    launches_collective,
)
from rankscope.analysis.core.columns import assigned
from rankscope.analysis.core.kernel_families import family
from rankscope.analysis.core.name_patterns import remembered
from rankscope.analysis.core.record_kinds import COMMUNICATION, COMPUTE, COPY, KERNEL, MEMCPY
from rankscope.analysis.core.table import UNKNOWN, Column, Table, encode
from rankscope.analysis.rank.batches import batches, described, operations
from rankscope.analysis.read.rank_trace import COLLECTIVE_COLUMNS, end_of

_NESTING = 8  # nested records and those of other threads that may lie between a launch and the record around it


def with_cpu_metadata(table: Table, host: Table) -> Table:
    """Give communication kernels without metadata that of the CPU record that launched them, if there is one.

    The record is found by its External id, otherwise as the innermost one around the launch call.
    """
    is_comm = table.where("name", is_communication)
    inside = _launched_inside(table, host, is_comm)
    bare = np.flatnonzero((is_comm | (inside >= 0)) & (table["collective"] < 0))
    hint = np.full(len(table), -1, np.int32)
    if len(bare):
        table = _described(table, bare, host, is_comm)
        named = host.where("name", launches_collective)
        annotation = _launching_record(table, bare, host, named)
        annotation = np.where(annotation >= 0, annotation, inside[bare])
        hint[bare] = np.where(annotation >= 0, host["name"][annotation] if len(host) else -1, -1)
    added = {"hint": hint, "inside": inside}
    return Table({**table.columns, **added}, {**table.words, "hint": host.words["name"]}).moved()


def _described(table: Table, bare: Column, host: Table, is_comm: Column) -> Table:
    """Return the table with metadata of CPU records in the rows `bare`, if there are such records."""
    described = _launching_record(table, bare, host, host["collective"] >= 0)
    found = described >= 0
    columns = table.columns
    if found.any():
        values: dict[str, Any] = {name: _recode(table, host, name)[described[found]] for name in COLLECTIVE_COLUMNS}
        columns = assigned(columns, bare[found], values | {"described": 1})
    if not found.all():
        for name, (rows, own) in _described_by_batches(table, is_comm, bare[~found], host).items():
            columns = assigned(columns, np.array(rows), {name: np.array(own)})
        columns = _with_sizes(columns, table, bare[~found], host)
    return Table(columns, table.words)


def _described_by_batches(
    table: Table, is_comm: Column, rows: Column, host: Table
) -> dict[str, tuple[list[int], list[int]]]:
    """Return for each column the rows of kernels that a batch launched, and what its operations have in common."""
    ranges = batches(host)
    found: defaultdict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    if not len(ranges) or not len(rows):
        return found
    records = np.flatnonzero(host["collective"] >= 0)
    launched = innermost(table["launch_start"][is_comm], table["launch_thread"][is_comm], host, records)
    of_range = operations(host, ranges, launched[launched >= 0])
    around = innermost(table["launch_start"][rows], table["launch_thread"][rows], host, ranges)
    for row, batch in zip(rows.tolist(), around.tolist(), strict=True):
        if batch in of_range:
            for name, value in (described(host, of_range[batch]) | {"described": 1}).items():
                found[name][0].append(row)
                found[name][1].append(value)
    return found


def _launched_inside(table: Table, host: Table, is_comm: Column) -> Column:
    """Return for each record that is part of a collective, whatever its name, the host record of that collective.

    -1 for all others. A collective's own record launches its work directly: a copy engine's gather is a memcpy, and
    inference engines have kernels of their own. Work that an operator inside it launches (`aten::copy_`, which flattens
    tensors) is not the collective. Operators of symmetric memory copy with such operators, so their copies count.
    """
    result = np.full(len(table), -1)
    records = np.flatnonzero(host.where("name", is_of_collective))
    symmetric = np.flatnonzero(host.where("name", _is_symmetric))
    if not len(records) and not len(symmetric):
        return result
    copies = table["activity"] == MEMCPY
    unknown = (table["activity"] == KERNEL) & ~is_comm & table.where("name", says_nothing)
    rows = np.flatnonzero((copies | unknown) & (table["launch_start"] != UNKNOWN))
    times, threads = table["launch_start"][rows], table["launch_thread"][rows]
    around = innermost(times, threads, host, records)
    rows, times, threads, around = (part[around >= 0] for part in (rows, times, threads, around))
    if len(rows):
        operators = np.flatnonzero((host["annotation"] == 0) & np.isin(host["thread"], np.unique(threads)))
        nearest = innermost(times, threads, host, np.union1d(operators, records))
        direct = np.isin(nearest, records)
        result[rows[direct]] = around[direct]
    mine = np.flatnonzero(copies & (table["launch_start"] != UNKNOWN) & (result < 0))
    result[mine] = innermost(table["launch_start"][mine], table["launch_thread"][mine], host, symmetric)
    return result


def with_scope(table: Table, host: Table) -> Table:
    """Add `scope`: the annotation of sharded data parallelism in which a collective was launched, with its layer."""
    scope: Column = np.full(len(table), -1)
    if "launch_thread" in table.columns:
        sources = np.flatnonzero(host.where("name", _is_scope))
        scope = innermost(table["launch_start"], table["launch_thread"], host, sources)
    codes, words = encode([None if at < 0 else host.words["name"][host["name"][at]] for at in scope.tolist()])
    return Table({**table.columns, "scope": codes}, {**table.words, "scope": words})


@remembered
def _is_scope(name: str) -> bool:
    """Return whether an annotation is one of FSDP2 (`FSDP::all_gather (layers.0)`) or FSDP1."""
    return name.startswith(("FSDP::", "FullyShardedDataParallel."))


@remembered
def says_nothing(name: str) -> bool:
    """Return whether a kernel's name does not tell what it does."""
    return family(name) is None


@remembered
def _is_symmetric(name: str) -> bool:
    """Return whether a record is an operator of torch's symmetric memory that is one collective."""
    return name.startswith("symm_mem::") and collective_kind(name) != UNKNOWN_KIND


def _with_sizes(columns: dict[str, Any], table: Table, bare: Column, host: Table) -> dict[str, Any]:
    """Give communication kernels without metadata the element count and type of the record around their launch."""
    sized = host.where("name", has_shapes) & (host["in_nelems"] != UNKNOWN)
    around = _launching_record(table, bare, host, sized)
    found = around >= 0
    if not found.any():
        return columns
    return assigned(
        columns, bare[found], {name: _recode(table, host, name)[around[found]] for name in ("in_nelems", "dtype")}
    )


def _recode(table: Table, host: Table, name: str) -> Column:
    """Return a column of `host` in the codes of `table`. Both come from one reader and share their codes."""
    if name in table.words and host.words[name] != table.words[name]:
        raise AssertionError(f"column {name} has two dictionaries")
    return host[name]


def _launching_record(table: Table, rows: Column, host: Table, chosen: Column) -> Column:
    """Return for each of `rows` the chosen host record that launched it, -1 if there is none."""
    sources = np.flatnonzero(chosen)
    sources = sources[host["start"][sources] != UNKNOWN]
    if not len(rows) or not len(sources):
        return np.full(len(rows), -1)
    ids, first, count = np.unique(host["external_id"][sources], return_index=True, return_counts=True)
    wanted = table["external_id"][rows]
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    by_id = (ids[at] == wanted) & (count[at] == 1) & (wanted != UNKNOWN)
    inner = innermost(table["launch_start"][rows], table["launch_thread"][rows], host, sources)
    return np.where(by_id, sources[first[at]], inner)


def innermost(times: Column, threads: Column, host: Table, sources: Column) -> Column:
    """Return the innermost of `sources` around each time on its thread, -1 if there is none."""
    if not len(sources) or not len(times):
        return np.full(len(times), -1)
    sources = sources[np.argsort(host["start"][sources], kind="stable")]
    own = host.take(sources, "start", "duration", "thread")
    start, end, thread = own["start"], end_of(own), own["thread"]
    result = np.full(len(times), -1)
    at = np.searchsorted(start, times, "right") - 1
    for back in range(_NESTING):
        if back and (result >= 0).all():
            break
        index = np.maximum(at - back, 0)
        holds = (at >= back) & (times < end[index]) & (thread[index] == threads) & (times != UNKNOWN)
        result = np.where((result < 0) & holds, sources[index], result)
    return result


def classify(table: Table) -> tuple[Column, list[str], Column]:
    """Return (collective kind as codes, the words of the codes, role) of each record."""
    is_comm = table.where("name", is_communication)
    kernel = table["activity"] == KERNEL
    own = (kernel | (table["activity"] == MEMCPY)) & ((table["collective"] >= 0) | (table["inside"] >= 0))
    comm = (kernel & is_comm) | own
    role = np.where(comm, COMMUNICATION, np.where(kernel, COMPUTE, COPY))
    lookup: dict[tuple[int, int, int], str] = {}
    rows = np.flatnonzero(comm)
    kinds = []
    for key in zip(*(table[name][rows].tolist() for name in ("collective", "hint", "name")), strict=True):
        if key not in lookup:
            lookup[key] = _kind_of(table, *key)
        kinds.append(lookup[key])
    codes = np.full(len(table), -1, np.int32)
    codes[rows], words = encode(kinds)
    return codes, words, role


def _kind_of(table: Table, collective: int, hint: int, name: int) -> str:
    for code, column in ((collective, "collective"), (hint, "hint"), (name, "name")):
        if code >= 0:
            kind = collective_kind(table.words[column][code])
            if kind != UNKNOWN_KIND:
                return kind
    return UNKNOWN_KIND
