"""Finds which records of different ranks belong to the same collective.

Input: the ranks' communication records. Output: one table with a row per record. `call` is the number of the collective
it belongs to, or -1 if the record has no partner on some rank.

The key is (process group, Seq) if every rank has it. Otherwise calls are matched by their order within group and step,
if name, dtype and element count agree. Records left over from before the window are paired backwards from it, since
each rank has a different number of them. Without steps, calls are matched at the shift where the metadata agree and the
ends fit one clock.
"""

import difflib
import json
from collections.abc import Sequence as Many

import numpy as np

from rankscope.analysis.align.sequences import Sequence as Calls
from rankscope.analysis.align.sequences import best_shift
from rankscope.analysis.core import group_by
from rankscope.analysis.core.collective_kinds import POINT_TO_POINT
from rankscope.analysis.core.table import UNKNOWN, Column, Table, encode
from rankscope.analysis.rank.rank_data import NO_STEP, RankData

_NO_GROUP = "|null"
_ASSUMED = "?"
_NO_CALLS = np.zeros((0, 1), np.int64)


def match(ranks: Many[RankData]) -> Table:
    """Return the records of all ranks with `rank`, `group_id`, `ordinal` and `call`, sorted by call and rank."""
    records = _stack(ranks)
    call = np.full(len(records), -1)
    ordinal = np.full(len(records), -1)
    following = 0
    for rows in group_by.positions(records["group_id"]).values():
        pairs = _match_group(records, rows)
        call[rows[pairs >= 0]] = pairs[pairs >= 0] + following
        ordinal[rows[pairs >= 0]] = pairs[pairs >= 0]
        following += int(pairs.max(initial=-1)) + 1
    complete = _whole_calls(records, call)
    call = np.where(complete, call, -1)
    return records.with_columns(call=call, ordinal=ordinal).sort("call", "rank")


# --- groups --------------------------------------------------------------------------------------------------


def _stack(ranks: Many[RankData]) -> Table:
    """Put the records of all ranks into one table. `group_id` names the group and its members."""
    labelled = [_group_labels(data) for data in ranks]
    every = sorted({label for _, labels in labelled for label in labels if label != _NO_GROUP})
    members = {label: group_members(label) for label in every}
    sets = {label: None if found is None else frozenset(found) for label, found in members.items()}
    parts = []
    for data, (codes, labels) in zip(ranks, labelled, strict=True):
        if _NO_GROUP in labels:
            mine = [label for label, found in sets.items() if found is None or data.rank in found]
            assumed = _assumed_group(data, mine)
            members[assumed] = group_members(assumed)
            labels = [assumed if label == _NO_GROUP else label for label in labels]
        again, words = encode(labels)  # the assumed group may equal one of the others
        codes = again[codes]
        sizes = np.array([len(members[word] or ()) for word in words] + [0], np.int64)
        part = data.comms.with_columns(rank=np.full(len(data.comms), data.rank), members=sizes[codes])
        parts.append(Table({**part.columns, "group_id": codes}, {**part.words, "group_id": words}))
    return Table.concat(parts)


def _assumed_group(data: RankData, candidates: Many[str]) -> str:
    """Return the group of records that name none: the only group there is, otherwise all ranks of the job.

    A wrong assumption shows in `clock`: the intervals of a call must overlap, or they count as `causality_violations`.
    """
    if len(candidates) == 1:
        return candidates[0]
    listed = {name: ranks for name, ranks in data.groups.items() if len(ranks) > 1 and data.rank in ranks}
    if not candidates and len(listed) == 1:  # the trace's header names the only group
        name, ranks = next(iter(listed.items()))
        return f"{name}|{json.dumps(ranks)}"
    if not candidates and data.world_size is not None:
        return f"{_ASSUMED}|{json.dumps(list(range(data.world_size)))}"
    return _NO_GROUP


def group_name(group_id: str) -> str:
    return group_id.rpartition("|")[0]


def group_members(group_id: str) -> list[int] | None:
    """Return the global ranks of a group from its `group_id`; None if they are unknown."""
    members: list[int] | None = json.loads(group_id.rpartition("|")[2])
    return members


def _group_labels(data: RankData) -> tuple[Column, list[str]]:
    """Return each record's `group_id` as codes and words.

    A record without metadata takes the only group of its stream; if the stream has none, the rank's only group.
    """
    comms = data.comms
    keys = np.stack([comms["group"], comms["group_ranks"], comms["group_size"]], axis=1).astype(np.int64)
    found, index = np.unique(keys, axis=0, return_inverse=True)
    index = index.ravel()
    labels = []
    for group, listed, size in found.tolist():
        name = comms.words["group"][group] if group >= 0 else None
        text = comms.words["group_ranks"][listed] if listed >= 0 else None
        labels.append(_NO_GROUP if name is None else f"{name}|{json.dumps(_members(data, name, text, size))}")
    codes, words = encode(labels)
    codes = codes[index] if len(codes) else np.zeros(0, np.int32)
    bare = comms["group"] < 0
    if bare.any() and not bare.all():
        everywhere = np.unique(codes[~bare])
        for rows in group_by.positions(comms["stream"]).values():
            known = np.unique(codes[rows[~bare[rows]]])
            known = known if len(known) else everywhere
            if len(known) == 1:
                codes[rows[bare[rows]]] = known[0]
    used = np.unique(codes).tolist()
    return np.searchsorted(used, codes).astype(np.int32), [words[code] for code in used]


def _members(data: RankData, name: str, listed: str | None, size: int) -> list[int] | None:
    try:
        found = json.loads(listed or "")
        if isinstance(found, list) and found and all(isinstance(rank, int) for rank in found):
            return [int(rank) for rank in found]
    except ValueError:
        pass  # absent, or shortened by its writer: "[0, 1, ..., 127]"
    if name in data.groups:
        return data.groups[name]
    world = data.world_size
    return list(range(world)) if world is not None and size in (world, UNKNOWN) else None


# --- one group -----------------------------------------------------------------------------------------------


def _match_group(records: Table, rows: Column) -> Column:
    """Return for each of `rows` the number of its call within the group, -1 if it has no partners."""
    result = np.full(len(rows), -1)
    part = _with_left_overs(records.take(rows))
    usable = ~np.isin(part["kind"], [code for code, word in enumerate(part.words["kind"]) if word in POINT_TO_POINT])
    described = (part["described"] == 1) & usable
    with_seq = usable & (part["seq"] != UNKNOWN)
    everywhere = np.isin(part["rank"], part["rank"][with_seq]).all()
    if not everywhere or (described & ~with_seq).any():
        with_seq[:] = False  # one rank's torch writes no Seq, so the order decides for all ranks
    following = 0
    if with_seq.any():
        chosen = np.flatnonzero(with_seq)
        result[chosen] = _by_seq(part.take(chosen))
        following = int(result.max()) + 1
    rest = np.flatnonzero(usable & ~with_seq)
    if len(rest):
        found = _by_order(part.take(rest))
        result[rest] = np.where(found >= 0, found + following, -1)
    return result


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


def _by_order(part: Table) -> Column:
    """Number the calls by their order, step by step; over the complete sequence if a rank has no steps."""
    result = np.full(len(part), -1)
    sequences = {rank: Calls.of(part, rows) for rank, rows in group_by.positions(part["rank"]).items()}
    following = 0
    stepped = part["stepped"].all()
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
        matcher = difflib.SequenceMatcher(None, reference.signatures, other.signatures, autojunk=False)
        partner = {a + i: b + i for a, b, n in matcher.get_matching_blocks() for i in range(n)}
        kept = {i: [*rows, int(other.rows[partner[i]])] for i, rows in kept.items() if i in partner}
    return np.array([kept[index] for index in sorted(kept)], np.int64).reshape(-1, len(calls))


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


def _whole_calls(records: Table, call: Column) -> Column:
    """Return whether the row's call has a record from every loaded rank of its group, all of the same kind."""
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
    kinds = np.full(count, -1)
    kinds[call[ok]] = records["kind"][ok]
    same = np.bincount(call[ok], records["kind"][ok] != kinds[call[ok]], count) == 0
    whole = (seen == expected) & same
    return np.asarray(ok & whole[np.maximum(call, 0)])
