"""Names the process group of each communication record, and its members: by metadata, or by what else is known.

Input: the ranks' communication records. Output: one table of all records with `group_id`, the group's name and members.
"""

import json
from collections.abc import Sequence as Many
from functools import lru_cache

import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.table import UNKNOWN, Column, Table, encode
from rankscope.analysis.rank.rank_data import RankData

_NO_GROUP = "|null"
ASSUMED = "?"


def stack(ranks: Many[RankData]) -> Table:
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

    `match` refuses a wrong assumption: the records of a call must overlap on one clock.
    """
    if len(candidates) == 1:
        return candidates[0]
    listed = {name: ranks for name, ranks in data.groups.items() if len(ranks) > 1 and data.rank in ranks}
    if not candidates and len(listed) == 1:  # the trace's header names the only group
        name, ranks = next(iter(listed.items()))
        return _label(name, _hashable(ranks))
    if not candidates and data.world_size is not None:
        return _label(ASSUMED, range(data.world_size))
    return _NO_GROUP


@lru_cache(1 << 12)
def _label(name: str, members: Many[int] | None) -> str:
    """Return the `group_id`. Many ranks have the same groups, and their ids are long, so each exists once."""
    return f"{name}|{json.dumps(None if members is None else list(members))}"


def _hashable(ranks: Many[int] | None) -> Many[int] | None:
    return tuple(ranks) if isinstance(ranks, list) else ranks


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
        labels.append(_NO_GROUP if name is None else _label(name, _hashable(_members(data, name, text, size))))
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


def _members(data: RankData, name: str, listed: str | None, size: int) -> Many[int] | None:
    try:
        found = json.loads(listed or "")
        if isinstance(found, list) and found and all(isinstance(rank, int) for rank in found):
            return [int(rank) for rank in found]
    except ValueError:
        pass  # absent, or shortened by its writer: "[0, 1, ..., 127]"
    if name in data.groups:
        return data.groups[name]
    world = data.world_size
    return range(world) if world is not None and size in (world, UNKNOWN) else None
