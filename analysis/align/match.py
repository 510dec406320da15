"""Pairs the records of different ranks that belong to the same collective, under one hypothesis.

Input: the communication records of one group, with `rank`. Output: for each record the number of its call, or -1 if it
has no partner. `pairing` tries the hypotheses and says which one holds:

- `seq`: the records with the same `Seq`, if every rank has it
- `order`: step by step in order, if kind, type and size agree. Records left over from before the window are paired
  backwards from it, since each rank has a different number of them. Without steps it is the same as `shift`.
- `shift`: the complete sequences at the shift where the metadata agree and the ends fit one clock
"""

import difflib
from typing import Literal

import numpy as np

from rankscope.analysis.align.groups import group_members
from rankscope.analysis.align.point_to_point import of_kind
from rankscope.analysis.align.sequences import Sequence as Calls
from rankscope.analysis.align.sequences import best_shift
from rankscope.analysis.core import group_by
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.rank.rank_data import NO_STEP

_NO_CALLS = np.zeros((0, 1), np.int64)
Hypothesis = Literal["seq", "order", "shift"]
HYPOTHESES: tuple[Hypothesis, ...] = ("seq", "order", "shift")


def numbered(part: Table, hypothesis: Hypothesis) -> Column:
    """Return the number of each record's call within the group, -1 if it has no partners."""
    part = _with_left_overs(part)
    result = np.full(len(part), -1)
    usable = ~of_kind(part)
    with_seq = _with_seq(part, usable) if hypothesis == "seq" else np.zeros(len(part), bool)
    following = 0
    if with_seq.any():
        chosen = np.flatnonzero(with_seq)
        result[chosen] = _by_seq(part.take(chosen))
        following = int(result.max()) + 1
    rest = np.flatnonzero(usable & ~with_seq)
    if len(rest):
        found = _by_order(part.take(rest), stepwise=hypothesis != "shift")
        result[rest] = np.where(found >= 0, found + following, -1)
    return result


def _with_seq(part: Table, usable: Column) -> Column:
    """Return which records are matched by Seq: none if one rank's torch writes none."""
    described = (part["described"] == 1) & usable
    found = usable & (part["seq"] != UNKNOWN)
    everywhere = np.isin(part["rank"], part["rank"][found]).all()
    return found if everywhere and not (described & ~found).any() else np.zeros(len(part), bool)


def _with_left_overs(part: Table) -> Table:
    """Mark each rank's records from before its first step, and the ranks that have steps."""
    left_over, stepped = np.zeros(len(part), bool), np.zeros(len(part), bool)
    for rows in group_by.positions(part["rank"]).values():
        own = np.flatnonzero(part["step"][rows] != NO_STEP)
        stepped[rows] = len(own) > 0
        left_over[rows[: own[0]] if len(own) else rows] = True
    return part.with_columns(left_over=left_over, stepped=stepped)


def _by_seq(part: Table) -> Column:
    """Number the calls by Seq. A second record of the same rank and Seq (a coalesced launch) is a separate call."""
    order = np.lexsort([np.arange(len(part)), part["rank"], part["seq"]])
    seq, rank = part["seq"][order], part["rank"][order]
    place = np.arange(len(part))
    new = np.ones(len(part), bool)
    new[1:] = (seq[1:] != seq[:-1]) | (rank[1:] != rank[:-1])
    again = place - np.maximum.accumulate(np.where(new, place, 0))
    keys = np.stack([seq, again], axis=1)
    _, number = np.unique(keys, axis=0, return_inverse=True)
    result = np.empty(len(part), np.int64)
    result[order] = number.ravel()
    return result


def _by_order(part: Table, *, stepwise: bool) -> Column:
    """Number the calls by their order, step by step; over the complete sequence if a rank has no steps."""
    result = np.full(len(part), -1)
    sequences = {rank: Calls.of(part, rows) for rank, rows in group_by.positions(part["rank"]).items()}
    following = 0
    stepped = stepwise and part["stepped"].all()
    blocks = _blocks(sequences) if stepped else [(False, sequences)]
    for backwards, block in blocks:
        if stepped:
            pairs = _zip_backwards(block) if backwards else _zip_step(block)
        else:
            pairs = _zip_shifted(block)
        result[pairs] = following + np.arange(len(pairs))[:, None]
        following += len(pairs)
    return result


def _blocks(sequences: dict[int, Calls]) -> list[tuple[bool, dict[int, Calls]]]:
    """Split the sequences into blocks that are matched together: left-overs of one kind, each step, the remainder."""
    blocks: list[tuple[bool, dict[int, Calls]]] = []
    kinds = sorted({kind for calls in sequences.values() for kind in calls.before().kind.tolist()})
    for kind in kinds:
        blocks.append((True, {rank: calls.before().of_kind(kind) for rank, calls in sequences.items()}))
    for step in sorted({step for calls in sequences.values() for step in calls.step.tolist() if step != NO_STEP}):
        blocks.append((False, {rank: calls.in_step(step) for rank, calls in sequences.items()}))
    blocks.append((False, {rank: calls.between() for rank, calls in sequences.items()}))
    return blocks


def _zip_backwards(block: dict[int, Calls]) -> Column:
    """Pair the last with the last, the second to last with its counterpart, as far back as every rank has one.

    The result, here and below, is a matrix of rows: one line per call, one column per rank.
    """
    depth = min(len(calls.rows) for calls in block.values())
    return np.stack([calls.rows[len(calls.rows) - depth :] for calls in block.values()], axis=1)


def _zip_step(block: dict[int, Calls]) -> Column:
    """Pair the calls of one step by order; if ranks disagree, take the longest common sequence of signatures."""
    present = {rank: calls for rank, calls in block.items() if len(calls.rows)}
    if len(present) < len(block):
        return _NO_CALLS
    calls = list(present.values())
    reference = calls[0]
    if all(reference.agrees(other) for other in calls[1:]):
        return np.stack([c.rows for c in calls], axis=1)
    kept = {index: [int(row)] for index, row in enumerate(reference.rows)}
    for other in calls[1:]:
        partner = _common(reference.signatures, other.signatures)
        kept = {i: [*rows, int(other.rows[partner[i]])] for i, rows in kept.items() if i in partner}
    return np.array([kept[index] for index in sorted(kept)], np.int64).reshape(-1, len(calls))


def _common(one: list[tuple[int, ...]], other: list[tuple[int, ...]]) -> dict[int, int]:
    """Return the pairs of a longest common sequence that are the same from the front and from the back.

    Where a call is missing among equal ones, the two differ: nobody knows which one it is.
    """
    forwards = _blocks_in_common(one, other)
    last, final = len(one) - 1, len(other) - 1
    backwards = {last - a: final - b for a, b in _blocks_in_common(one[::-1], other[::-1]).items()}
    return {a: b for a, b in forwards.items() if backwards.get(a) == b}


def _blocks_in_common(one: list[tuple[int, ...]], other: list[tuple[int, ...]]) -> dict[int, int]:
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
    return {a + i: b + i for a, b, n in matcher.get_matching_blocks() for i in range(n)}


def _zip_shifted(block: dict[int, Calls]) -> Column:
    """Pair complete sequences at the shift where signatures agree and the ends fit one clock best."""
    reference = max(block.values(), key=lambda calls: len(calls.rows))
    kept = {index: [int(row)] for index, row in enumerate(reference.rows)}
    for other in block.values():
        if other is reference:
            continue
        shift = best_shift(reference, other)
        if shift is None:
            return _NO_CALLS
        kept = {i: [*rows, int(other.rows[i - shift])] for i, rows in kept.items() if 0 <= i - shift < len(other.rows)}
    return np.array([kept[index] for index in sorted(kept)], np.int64).reshape(-1, len(block))


def whole_calls(records: Table, call: Column) -> Column:
    """Return whether the row's call has a record from every loaded rank of its group, all of the same kind.

    A send and its receive are two records.
    """
    ok = call >= 0
    count = int(call.max(initial=-1)) + 1
    if not count:
        return ok
    seen = np.bincount(call[ok], minlength=count)
    loaded = {rank for rank in np.unique(records["rank"]).tolist()}
    expected = np.zeros(count, np.int64)
    for group, rows in group_by.positions(records["group_id"]).items():
        members = group_members(records.words["group_id"][group])
        of_group = rows[ok[rows]]
        present = np.unique(records["rank"][rows])
        expected[call[of_group]] = len(loaded & set(members)) if members is not None else len(present)
    messages = ok & of_kind(records)
    expected[call[messages]] = 2
    kinds = np.full(count, -1)
    kinds[call[ok]] = records["kind"][ok]
    differs = (records["kind"] != kinds[np.maximum(call, 0)]) & ~messages
    same = np.bincount(call[ok], differs[ok], count) == 0
    whole = (seen == expected) & same
    return np.asarray(ok & whole[np.maximum(call, 0)])
