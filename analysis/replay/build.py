"""Builds the graph of all ranks: the parts of each rank on one clock, joined by the collectives that they share.

Input: a measured recording. Output: `Graph`. A collective is one point, at which its last rank
has come; it ends on each rank when its transfer is done.
"""

import re

import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.intervals import Intervals, minus
from rankscope.analysis.core.name_patterns import found_in
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.record_kinds import COMMUNICATION
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.measure.recording import Recording
from rankscope.analysis.rank.rank_data import NO_STEP, RankData
from rankscope.analysis.rank.steps import step_at
from rankscope.analysis.read.rank_trace import launch_of
from rankscope.analysis.replay import cpu, device
from rankscope.analysis.replay.gradients import Gradients, buckets
from rankscope.analysis.replay.graph import NONE, Edges, Graph, Records, Work
from rankscope.analysis.replay.order import in_order, rest
from rankscope.analysis.replay.part import FIELDS, Part

_SYNC = found_in(re.compile(r"Synchronize|^(cuda|hip)Free$|MemcpyWithStream"))  # calls that wait for the device
_COPY = found_in(re.compile(r"[mM]emcpy"))
_EVENT_WAIT = found_in(re.compile(r"StreamWaitEvent"))
_FIELDS = (*FIELDS, "rank", "call", "size")
_RECORD = ("rank", "role", "name", "step", "start", "end")
_LINKED = 0.5  # share of records with a launch below which what the host does is unknown


def build(recording: Recording, gradients: Gradients | None = None) -> Graph:
    """Return the graph of the recorded steps; `AnalysisError` if there is none to build.

    `gradients`: add all-reduces of them to the only rank. They take no time yet, so the steps stay as they are.
    """
    steps = recording.steps_judged or recording.steps_analysed
    if not recording.ranks or not steps:
        raise AnalysisError("no complete step was recorded: there is nothing to replay")
    if len({data.mode for data in recording.ranks}) > 1:
        raise AnalysisError("some ranks recorded a device and others none: they cannot be replayed together")
    builder = _Builder(recording, steps)
    complete = [data for data in recording.ranks if data.complete and len(data.steps)]
    if not complete:
        raise AnalysisError("no rank has complete records of its steps: there is nothing to replay")
    for data in complete:
        builder.add_rank(data)
    builder.add_collectives()
    if gradients is not None:
        builder.add_gradients(gradients)
    graph = builder.graph()
    if graph.step_ns(graph.time) <= 0:
        raise AnalysisError("the recorded steps have no length: there is nothing to replay")
    return graph


class _Builder:
    """Collects points and edges rank by rank, then joins the collectives."""

    def __init__(self, recording: Recording, steps: list[int]) -> None:
        self.recording, self.steps = recording, steps
        self.points: dict[str, list[Column]] = {name: [] for name in ("time", "rank", "ends")}
        self.edges: dict[str, list[Column]] = {name: [] for name in _FIELDS}
        self.shared: list[Column] = []  # (row in `calls`, point at which it starts, point at which it ends)
        self.records: dict[str, list[Column]] = {name: [] for name in _RECORD}
        self.words: dict[str, int] = {}
        self.launched: list[tuple[Table, Column, Part]] = []  # of ranks with a device: records, launching threads
        self.count = self.dropped = 0
        self.reasons: list[str] = []

    def add_rank(self, data: RankData) -> None:
        """Add the points and edges of a rank; its collectives with partners are added later."""
        records = self._records(data)
        if data.mode == "device":
            part = self._device_part(data, records)
        else:
            records = records.take(records["role"] == COMMUNICATION)
            part = self._cpu_part(data, records)
        for name in FIELDS:
            shift = self.count if name in ("source", "target") else 0
            self.edges[name].append(part.added(name) + shift)
        size = len(self.edges["source"][-1])
        for name, value in (("rank", data.rank), ("call", NONE), ("size", 0)):
            self.edges[name].append(np.full(size, value))
        rows = np.flatnonzero(records["shared"])
        ends = (part.starts[rows] + self.count, part.finishes[rows] + self.count)
        self.shared.append(np.stack([records["of_call"][rows], *ends]))
        of_record = {"rank": np.full(len(records), data.rank), "start": part.starts + self.count}
        of_record |= {"end": part.finishes + self.count}
        for name in _RECORD:
            self.records[name].append(of_record[name] if name in of_record else records[name])
        self._add_points(part.time, data.rank, part.ends)
        self.dropped += part.dropped

    def _device_part(self, data: RankData, records: Table) -> Part:
        calls = self._calls(data)
        row = launch_of(records["correlation"], calls)
        if len(records) and (row >= 0).mean() < _LINKED:
            text = "most records do not say which call launched them, so they do not follow what the host does"
            self.reasons.append(f"rank {data.rank}: {text}")
        records = records.with_columns(launched=row, boundary=self._boundary(records))
        part = device.part_of(records, calls, self._on_common(data, data.data_wait))
        self.launched.append((records, np.append(calls["thread"], NONE)[row], part))
        return part

    def _cpu_part(self, data: RankData, records: Table) -> Part:
        """Return the part of a rank without a device: from the first recorded step to the last."""
        steps = data.steps
        at = group_by.of_keys(steps["step"], np.array(self.steps))
        table = Table(
            {
                "start": self._common(data, steps["start"]),
                "end": self._common(data, steps["end"]),
                "step": steps["step"],
                "boundary": np.where(at >= 0, at + 1, NONE),
                "opens": steps["step"] == self.steps[0],
            }
        )
        waits = self._on_common(data, data.data_wait)
        return cpu.part_of(table, records, minus(self._on_common(data, data.compute), waits), waits)

    def _add_points(self, time: Column, rank: int, ends: Column) -> None:
        self.points["time"].append(time)
        self.points["rank"].append(np.full(len(time), rank))
        self.points["ends"].append(ends)
        self.count += len(time)

    def add_collectives(self) -> None:
        """Add a point for each call with partners, after its ranks' starts and before their ends."""
        calls = self.recording.calls
        row, start, end = np.concatenate(self.shared, axis=1) if self.shared else np.zeros((3, 0), np.int64)
        number, at = np.unique(calls["call"][row], return_inverse=True)
        ready = np.full(len(number), UNKNOWN)
        times = np.concatenate(self.points["time"])
        np.maximum.at(ready, at, times[start])
        point = self.count + at
        self._add_points(ready, NONE, np.full(len(number), NONE))
        of_row = {
            "rank": calls["rank"][row],
            "step": calls["step"][row],
            "call": calls["call"][row],
            "bytes": calls["bytes"][row],
            "size": np.bincount(at)[at],
            "name": self._coded(calls.words["kind"])[calls["kind"][row]],
        }
        after = times[end] >= ready[at]
        zero = np.zeros(len(row), np.int64)
        self._add_edges(source=start, target=point, weight=zero, work=Work.ORDER, **of_row)
        self._add_edges(
            source=point, target=end, weight=times[end] - ready[at], work=Work.TRANSFER, keep=after, **of_row
        )
        self._add_edges(
            source=start, target=end, weight=times[end] - times[start], work=Work.TRANSFER, keep=~after, **of_row
        )

    def add_gradients(self, gradients: Gradients) -> None:
        """Add the all-reduces of gradients to the only rank, each of them after the one before."""
        if len(self.recording.ranks) > 1 or not self.launched:
            raise AnalysisError("gradient_mb: adds all-reduces only to a recording of one rank with a device")
        ((records, thread, part),) = self.launched
        rank = self.recording.ranks[0].rank
        found = buckets(records, thread, self.steps, gradients)
        count = len(found.step)
        last = np.flatnonzero(np.append(found.step[1:] != found.step[:-1], True))
        follows = np.setdiff1d(np.arange(count), np.append(0, last[:-1] + 1))
        ready = part.time[part.finishes[found.after]]
        # An all-reduce takes 1 ns, so that its end comes after its start.
        start = np.maximum.accumulate(ready - 2 * np.arange(count)) + 2 * np.arange(count)
        starts, ends = self.count + np.arange(count), self.count + count + np.arange(count)
        self._add_points(np.concatenate([start, start + 1]), rank, np.full(2 * count, NONE))
        waits = last[found.before[last] != NONE]
        waits = waits[part.time[part.starts[found.before[waits]]] > start[waits] + 1]
        of_call = {"bytes": found.bytes, "call": np.arange(count), "step": found.step}
        of_call["name"] = np.full(count, self._coded(["allreduce"])[0])
        sources = (part.finishes[found.after], ends[follows - 1], starts, ends[waits])
        targets = (starts, starts[follows], ends, part.starts[found.before[waits]])
        for source, target, rows in zip(sources, targets, (slice(None), follows, slice(None), waits), strict=True):
            work = Work.TRANSFER if source is starts else Work.ORDER
            weight, one = np.full(len(source), int(work == Work.TRANSFER)), np.ones(len(source), np.int64)
            own = {name: column[rows] for name, column in of_call.items()}
            self._add_edges(source=source, target=target, weight=weight, work=work, rank=rank * one, size=one, **own)

    def _add_edges(self, *, keep: Column | None = None, work: Work, **columns: Column) -> None:
        size = len(columns["source"])
        keep = np.ones(size, bool) if keep is None else keep
        full = {"work": np.full(size, int(work)), "delay": np.zeros(size, np.int64), **columns}
        for name in _FIELDS:
            self.edges[name].append(full[name][keep])

    def graph(self) -> Graph:
        """Return the points in order of time, and the edges in order of their targets."""
        points = {name: np.concatenate(parts) for name, parts in self.points.items()}
        edges = {name: np.concatenate(parts) for name, parts in self.edges.items()}
        order, place = in_order(points["time"], edges)
        source, target = place[edges["source"]], place[edges["target"]]
        forward = source < target
        rows = np.flatnonzero(forward)
        rows = rows[np.argsort(target[rows], kind="stable")]
        kept = {name: column[rows] for name, column in edges.items()}
        kept |= {"source": source[rows], "target": target[rows]}
        time = points["time"][order]
        origin = int(time.min()) if len(time) else 0
        time = time - origin
        kept["delay"] = kept["delay"] + rest(time, kept)
        return Graph(
            origin=origin,
            time=time,
            rank=points["rank"][order],
            ends=points["ends"][order],
            begins=self._begins() - origin,
            edges=Edges(**kept),
            records=self._sorted_records(place, kept),
            names=list(self.words),
            steps=self.steps,
            dropped=self.dropped + int((~forward).sum()),
            reasons=self.reasons,
        )

    def _begins(self) -> int:
        """Return when the last rank begins the first step that counts."""
        table = self.recording.step_table
        return int(table["start_ns"][table["step"] == self.steps[0]].max(initial=UNKNOWN))

    def _sorted_records(self, place: Column, edges: dict[str, Column]) -> Records:
        """Return the records by the new numbers of their points, each with the edge that is its work."""
        found = {name: np.concatenate(parts) for name, parts in self.records.items()}
        found |= {name: place[found[name]] for name in ("start", "end")}
        between = edges["source"] * (len(place) + 1) + edges["target"]
        edge = group_by.of_keys(found["start"] * (len(place) + 1) + found["end"], between)
        return Records(**found, edge=edge)

    # --- one rank's tables ---------------------------------------------------------------------------------

    def _records(self, data: RankData) -> Table:
        """Return the device records that count on the common clock, with the collective call that each belongs to."""
        kernels, calls = data.kernels, self.recording.calls
        own = np.flatnonzero(calls["rank"] == data.rank)
        of_call = np.full(len(kernels), NONE)
        at = {key: row for key, row in zip(_keys(calls, own), own.tolist(), strict=True)}
        comm = np.flatnonzero(kernels["role"] == COMMUNICATION)
        of_call[comm] = [at.get(key, NONE) for key in _keys(kernels, comm)]
        table = Table(
            {
                "start": self._common(data, kernels["start"]),
                "end": self._common(data, kernels["end"]),
                "launch_start": self._common(data, kernels["launch_start"]),
                "bytes": _of_rows(calls["bytes"], of_call),
                "name": self._coded(kernels.words["name"])[kernels["name"]],
                "shared": (_of_rows(calls["wait_ns"], of_call) != UNKNOWN) & (_of_rows(calls["call"], of_call) >= 0),
                "of_call": of_call,
                "pageable": kernels.where("name", lambda word: "ageable" in word),
                **{name: kernels[name] for name in ("role", "stream", "correlation", "step")},
            }
        )
        return table.take(kernels["end"] >= kernels["start"])

    def _calls(self, data: RankData) -> Table:
        """Return the calls that launched a record or may wait for one, on threads that launch, in order."""
        launches = data.launches
        waits, events = launches.where("name", _SYNC), launches.where("name", _EVENT_WAIT)
        launching = group_by.among(launches["correlation"], data.kernels["correlation"])
        threads = np.unique(launches["thread"][launching])
        chosen = (launching | waits | events) & np.isin(launches["thread"], threads)
        chosen &= (launches["start"] != UNKNOWN) & (launches["end"] >= launches["start"])
        calls = launches.take(chosen).sort("start")
        table = Table(
            {
                "start": self._common(data, calls["start"]),
                "end": self._common(data, calls["end"]),
                "thread": calls["thread"],
                "name": self._coded(calls.words["name"])[calls["name"]],
                "step": step_at(calls["start"], data.steps),
                "syncs": calls.where("name", _SYNC),
                "copies": calls.where("name", _COPY),
                "event_wait": calls.where("name", _EVENT_WAIT),
                "correlation": calls["correlation"],
            }
        )
        return table

    def _common(self, data: RankData, times: Column) -> Column:
        known = times != UNKNOWN
        return np.where(known, self.recording.alignment.to_common(data.rank, np.where(known, times, 0)), UNKNOWN)

    def _on_common(self, data: RankData, intervals: Intervals) -> Intervals:
        return np.stack([self._common(data, intervals[0]), self._common(data, intervals[1])])

    def _boundary(self, records: Table) -> Column:
        """Return the boundary that each record's end may set."""
        counted = np.flatnonzero(np.isin(records["step"], self.steps))
        first = int(counted[0]) if len(counted) else 0
        before = (records["step"] < self.steps[0]) & (np.arange(len(records)) < first)
        before |= (records["step"] != NO_STEP) & (records["step"] < self.steps[0])
        at = group_by.of_keys(records["step"], np.array(self.steps))
        return np.where(at >= 0, at + 1, np.where(before, 0, NONE))

    def _coded(self, words: list[str]) -> Column:
        """Return the code of each word in the names of the graph; the last entry is for code -1."""
        return np.array([*(self.words.setdefault(word, len(self.words)) for word in words), NONE], np.int64)


def _of_rows(column: Column, rows: Column) -> Column:
    """Return the values at these rows; `UNKNOWN` at -1."""
    return np.append(column, UNKNOWN)[rows]


def _keys(table: Table, rows: Column) -> list[tuple[int, int]]:
    return list(zip(table["start"][rows].tolist(), table["stream"][rows].tolist(), strict=True))
