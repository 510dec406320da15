"""The stages of a pipeline: who computes how long, how long each waits for another stage (the bubble), and why.

Input: a `Recording` whose sends and receives are paired. Output: a `Pipeline` for each set of ranks that exchange
messages. The stages are in the order in which their ranks send first within a step, because only the first stage can
begin without a message.

A stage with t_s of compute per micro-batch waits at least for the fill and drain of the others, and for the slowest
stage in every micro-batch. So with n micro-batches the bubble of stage r is

    (sum of t_s) - max t_s  +  n (max t_s - t_r)

The first part is the schedule's: with p equal stages it is (p - 1) / (n + p - 1) of the step, as for GPipe (Huang et
al., 2019) and 1F1B (Narayanan et al., 2021). The second part is that of uneven stages.
"""

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from rankscope.analysis.align.point_to_point import of_kind
from rankscope.analysis.core.intervals import Intervals, both, length, minus, union
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.core.units import estimate_ms
from rankscope.analysis.measure.recording import Recording
from rankscope.analysis.rank.rank_data import RankData
from rankscope.analysis.read.run_settings import config_of


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a pipeline; ms are means per analysed step."""

    rank: int
    compute_ms: float
    bubble_ms: float  # waiting for a message, or until another stage takes one, while nothing computes
    warm_up_ms: float  # of it, before the first message of a stage before it came
    drain_ms: float  # of it, after the last message to or from a stage before or after it in the forward direction
    schedule_ms: float  # what fill and drain of the other stages explain
    uneven_ms: float  # what slower stages explain


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of one pipeline, first stage first."""

    stages: list[Stage]
    micro_batches: float  # forward passes of a rank in a step: micro-batches, times its stages if they are interleaved
    step_ms: float
    even_share: float  # (p - 1) / (n + p - 1): the share of the bubble if all stages took the same time


def pipelines(recording: Recording) -> list[Pipeline]:
    """Return the pipelines with paired messages, by their first rank; empty if there is none."""
    if not len(recording.calls):
        return []
    messages = _messages(recording)
    if not len(messages):
        return []
    data = {item.rank: item for item in recording.ranks}
    return [_pipeline(recording, messages, ranks, data) for ranks in _connected(messages) if len(ranks) > 1]


def _messages(recording: Recording) -> Table:
    """Return the receives of the analysed steps with the rank that sent each (`sender`) and when (`sent`).

    A batch that sends and receives at once is a receive on both of its ranks.
    """
    calls = recording.calls
    known = of_kind(calls) & (calls["wait_ns"] != UNKNOWN) & np.isin(calls["step"], recording.steps_analysed)
    rows = np.flatnonzero(known)
    sends = calls.where("kind", lambda word: word == "send")
    of_call: defaultdict[int, list[int]] = defaultdict(list)
    for row in rows.tolist():
        of_call[int(calls["call"][row])].append(row)
    pairs = [(row, other) for own in of_call.values() for row in own for other in own if row != other]
    pairs = [(row, other) for row, other in pairs if not sends[row]]
    receives, sent = np.array(pairs, np.int64).reshape(-1, 2).T
    order = np.argsort(receives, kind="stable")
    found = calls.take(receives[order])
    return found.with_columns(sender=calls["rank"][sent[order]], sent=calls["start_ns"][sent[order]])


def _connected(messages: Table) -> list[list[int]]:
    """Return the sets of ranks that exchange messages."""
    neighbours: defaultdict[int, set[int]] = defaultdict(set)
    for one, other in zip(messages["sender"].tolist(), messages["rank"].tolist(), strict=True):
        neighbours[one].add(other)
        neighbours[other].add(one)
    found: list[list[int]] = []
    seen: set[int] = set()
    for first in sorted(neighbours):
        if first in seen:
            continue
        group, open_ranks = {first}, [first]
        while open_ranks:
            new = neighbours[open_ranks.pop()] - group
            group |= new
            open_ranks += new
        seen |= group
        found.append(sorted(group))
    return found


def _pipeline(recording: Recording, messages: Table, ranks: list[int], data: dict[int, RankData]) -> Pipeline:
    own = messages.take(np.isin(messages["rank"], ranks))
    order = _in_order(own, ranks)
    steps = recording.steps_analysed
    place = {rank: number for number, rank in enumerate(order)}
    first_two = (own["sender"] == order[0]) & (own["rank"] == order[1])
    count = _told_count(recording) or max(float(first_two.sum()) / len(steps), 1.0)
    table = recording.step_table.take(np.isin(recording.step_table["step"], steps))
    compute = {rank: float(table["compute_ns"][table["rank"] == rank].mean()) for rank in order}
    sends = _sends(recording)
    waits = {
        rank: _waits(own.take(own["rank"] == rank), sends.take(sends["rank"] == rank), data[rank], place)
        for rank in order
    }
    slowest, total = max(compute.values()), sum(compute.values())
    stages = [
        Stage(
            rank=rank,
            compute_ms=estimate_ms(compute[rank]),
            bubble_ms=estimate_ms(waits[rank][0] / len(steps)),
            warm_up_ms=estimate_ms(waits[rank][1] / len(steps)),
            drain_ms=estimate_ms(waits[rank][2] / len(steps)),
            schedule_ms=estimate_ms((total - slowest) / count),
            uneven_ms=estimate_ms(slowest - compute[rank]),
        )
        for rank in order
    ]
    return Pipeline(
        stages=stages,
        micro_batches=round(count, 3),
        step_ms=estimate_ms(float(table["step_ns"][np.isin(table["rank"], order)].mean())),
        even_share=round((len(order) - 1) / (count + len(order) - 1), 4),
    )


def _told_count(recording: Recording) -> int | None:
    """Return how many forward passes a rank does in a step if the run's settings say it.

    Otherwise messages are counted. With two ranks that have several stages each, those of the backward pass count too.
    """
    config = None if recording.run_dir is None else config_of(recording.run_dir)
    return None if config is None or config.parallelism != "pp" else config.parallel.forwards


def _in_order(messages: Table, ranks: Sequence[int]) -> list[int]:
    """Return the ranks in the order of their first send in a step, by the median over the steps."""
    first: defaultdict[int, list[float]] = defaultdict(list)
    for step in np.unique(messages["step"]).tolist():
        rows = messages["step"] == step
        opened = int(messages["sent"][rows].min())
        for rank in ranks:
            sent = messages["sent"][rows & (messages["sender"] == rank)]
            if len(sent):
                first[rank].append(float(sent.min()) - opened)
    return sorted(ranks, key=lambda rank: float(np.median(first[rank])) if first[rank] else float("inf"))


def _sends(recording: Recording) -> Table:
    """Return the sends of the analysed steps; one may wait until the other rank takes the message."""
    calls = recording.calls
    chosen = calls.where("kind", lambda word: word in ("send", "sendrecv"))
    return calls.take(chosen & np.isin(calls["step"], recording.steps_analysed))


def _waits(receives: Table, sends: Table, data: RankData, place: dict[int, int]) -> tuple[int, int, int]:
    """Return how long a rank waits for other stages with nothing to compute (ns): in all, while it fills, and drains.

    Messages may be started together, so their waits count as a set.
    """
    forward = np.array([place[sender] < place[data.rank] for sender in receives["sender"].tolist()], bool)
    start, ready = _until_ready(receives)
    known = sends.take(sends["wait_ns"] != UNKNOWN)
    idle = minus(union(*map(np.concatenate, zip((start, ready), _until_ready(known), strict=True))), data.compute)
    warm_up, drain = 0, 0
    for step in np.unique(receives["step"]).tolist():
        rows = receives["step"] == step
        coming = rows & forward
        if coming.any():
            warm_up += _inside(idle, int(start[rows].min()), int(ready[coming].min()))
        last = _last_forward(receives.take(rows), forward[rows], sends.take(sends["step"] == step))
        drain += _inside(idle, last, int(ready[rows].max()))
    return length(idle), warm_up, drain


def _until_ready(messages: Table) -> tuple[Column, Column]:
    """Return when each message was started, and when both of its ranks had come."""
    start = messages["start"]
    return start, np.clip(start + messages["wait_ns"], start, messages["end"])


def _last_forward(receives: Table, forward: Column, sends: Table) -> int:
    """Return when the last forward message of a rank in a step was sent or had come, on its own clock."""
    if forward.any():
        return int(receives["end"][forward].max())
    return int(sends["start"].max()) if len(sends) else int(receives["end"].max())


def _inside(idle: Intervals, start: int, end: int) -> int:
    return length(both(idle, union(np.array([start]), np.array([max(start, end)]))))
