"""Finds the members of each NCCL communicator: the ranks that used it. An export names communicators, not members."""

from collections import defaultdict

import msgspec
import numpy as np

from rankscope.analysis.core.collective_kinds import PER_PART
from rankscope.analysis.core.table import UNKNOWN
from rankscope.analysis.rank.rank_data import RankData


def with_groups(ranks: list[RankData], world_size: int) -> list[RankData]:
    """Set the members of each communicator to the ranks that used it, and turn NCCL's sizes into totals."""
    if not any(data.source == "nsys" for data in ranks):
        return ranks
    ranks = [data if data.world_size else msgspec.structs.replace(data, world_size=world_size) for data in ranks]
    members: defaultdict[str, list[int]] = defaultdict(list)
    for data in ranks:
        for code in np.unique(data.comms["group"]).tolist():
            if code >= 0:
                members[data.comms.words["group"][code]].append(data.rank)
    if len(ranks) > 1 and all(len(found) == 1 for found in members.values()):
        members.clear()  # an id that no two ranks share says nothing
    return [_with_members(data, members) if data.source == "nsys" else data for data in ranks]


def _with_members(data: RankData, members: dict[str, list[int]]) -> RankData:
    comms = data.comms
    words = comms.words["group"]
    size = np.array([len(members[word]) if word in members else UNKNOWN for word in words] + [UNKNOWN], np.int64)
    group = np.where(np.array([word in members for word in words] + [False])[comms["group"]], comms["group"], -1)
    group_size = np.where(comms["group_size"] == UNKNOWN, size[comms["group"]], comms["group_size"])
    of_part = comms.where("kind", lambda word: word in PER_PART)
    known = (comms["bytes"] != UNKNOWN) & (group_size != UNKNOWN)
    total = np.where(known, comms["bytes"], 0) * np.where(known, group_size, 1)
    sizes = np.where(of_part, np.where(known, total, UNKNOWN), comms["bytes"])
    return msgspec.structs.replace(
        data,
        groups=data.groups | dict(members),
        comms=comms.with_columns(group=group, group_size=group_size, bytes=sizes),
    )
