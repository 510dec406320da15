"""A GPipe pipeline of which all times follow from its rules, as Chrome traces of gloo ranks on one host."""

import json
from pathlib import Path
from typing import Any

MS = 1_000_000
_BASE = 1_767_225_600_000_000_000
_FIRST = 4


class _Rank:
    def __init__(self, rank: int) -> None:
        self.rank, self.now = rank, 0
        self.events: list[dict[str, Any]] = []

    def event(self, category: str, name: str, start: int, end: int, **args: Any) -> None:
        found = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start / 1000}
        self.events.append(found | {"dur": (end - start) / 1000, "args": args})


def simulate(stages: list[int], micro_batches: int, folder: Path, steps: int = 4) -> list[float]:
    """Write a trace per rank. `stages`: ns of each stage's forward of a micro-batch; backward takes twice as long.

    Returns each rank's bubble per step (ns): the waiting for messages, which take no time themselves. The first step
    is not counted, because the window opens there.
    """
    ranks = [_Rank(rank) for rank in range(len(stages))]
    bubbles = [0.0] * len(stages)
    for step in range(_FIRST, _FIRST + steps):
        began = [rank.now for rank in ranks]
        for forward in (True, False):
            order = ranks if forward else ranks[::-1]
            sent: dict[tuple[int, int], int] = {}
            for rank, (number, batch) in ((r, x) for r in order for x in enumerate(range(micro_batches))):
                came_from = rank.rank + (-1 if forward else 1)
                if 0 <= came_from < len(ranks):
                    ready = max(rank.now, sent[came_from, batch])
                    _message(rank, "recv", rank.now, ready + 1000, came_from)
                    bubbles[rank.rank] += ready - rank.now if step > _FIRST else 0
                    rank.now = ready + 1000
                took = stages[rank.rank] * (1 if forward else 2)
                rank.event("cpu_op", f"aten::stage_{forward}_{number}", rank.now, rank.now + took)
                rank.now += took
                goes_to = rank.rank + (1 if forward else -1)
                if 0 <= goes_to < len(ranks):
                    sent[rank.rank, batch] = rank.now
                    _message(rank, "send", rank.now, rank.now + 1000, goes_to)
                    rank.now += 1000
        for rank, start in zip(ranks, began, strict=True):
            rank.event("user_annotation", f"ProfilerStep#{step}", start, rank.now)
            rank.now += 1000
    for rank in ranks:
        document = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "gloo", "rank": rank.rank, "world_size": len(ranks)},
            "baseTimeNanoseconds": _BASE,
            "rankscope_boot_id": "boot",
            "rankscope_host": "h0",
            "traceEvents": rank.events,
        }
        (folder / f"rank{rank.rank}.json").write_text(json.dumps(document))
    return [bubble / (steps - 1) for bubble in bubbles]


def _message(rank: _Rank, kind: str, start: int, end: int, peer: int) -> None:
    key = "Dst Rank" if kind == "send" else "Src Rank"
    metadata = {"Collective name": kind, "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float", key: peer}
    metadata |= {"Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]", "Group size": 4}
    rank.event("user_annotation", f"gloo:{kind}", start, end, **metadata)
