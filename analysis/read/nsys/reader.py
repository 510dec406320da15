"""Reads Nsight Systems' SQLite exports: one process of a file in, a `RankTrace` out.

The tables are those of the Kineto reader, so all later stages use the same code. Launches are the CUDA API calls,
annotations are NVTX ranges. A communication kernel takes its kind and size from the NCCL range around its launch.
Without a GPU only NVTX is recorded: the ranges inside a step then stand for the host's work, and collectives are not
visible at all.
"""

import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from rankscope.analysis.core import sm_share
from rankscope.analysis.core.collective_kinds import collective_kind
from rankscope.analysis.core.notices import Notice
from rankscope.analysis.core.record_kinds import KERNEL, MEMCPY, MEMSET, is_launch
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.read.decode import Codes
from rankscope.analysis.read.nsys.export import GRAPHS, KERNELS, KNOWN_MAJOR, PROCESS_BITS, Export
from rankscope.analysis.read.nsys.nccl_calls import NcclCalls, describe
from rankscope.analysis.read.nsys.ranges import Ranges, read_ranges
from rankscope.analysis.read.rank_trace import (
    CODED,
    COLLECTIVE_COLUMNS,
    DEVICE_COLUMNS,
    HOST_COLUMNS,
    LAUNCH_COLUMNS,
    RankTrace,
    rank_number,
)
from rankscope.conf.plain_text import path_text

_COPIES, _SETS, _CALLS = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("MEMCPY", "MEMSET", "RUNTIME"))
_WORK = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_GRID = ("gridX", "gridY", "gridZ")
_COPY_WORDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_GRAPH = "CUDA graph, its kernels not recorded"
_VERSION = re.compile(r"_v\d+(?:_ptsz|_ptds)?$")


def read(path: Path, label: str | None = None, steps: str | None = None, process: int | None = None) -> RankTrace:
    """Read one process of an export, named `label` in notices; `steps` names the ranges that are steps.

    If `process` is None, read the only process, or the one with the most GPU work. Raises `UnreadableTraceError` if
    the file gives no numbers at all.
    """
    export = Export(path, label or path_text(path.name))
    try:
        return _Reader(export, steps).trace(process)
    finally:
        export.close()


class _Reader:
    """Reads the tables of one export, for all its processes."""

    def __init__(self, export: Export, steps: str | None) -> None:
        self._export = export
        self._codes: defaultdict[str, Codes] = defaultdict(Codes)
        self._notices: list[Notice] = []
        self._ranges = read_ranges(export, steps)
        self._origin = export.origin
        if export.newer:
            text = f"schema {export.schema} is newer than the known {KNOWN_MAJOR}.x; read by table and column names"
            self._note("newer_schema", text)
        if self._origin is None:
            self._note("no_session_start", "does not say when its session began; clocks are aligned by collectives")

    def trace(self, process: int | None) -> RankTrace:
        """Return the tables of one process."""
        device, device_of = self._device()
        launches, launch_of = self._launches()
        host, host_of = self._host(with_device=len(device) > 0)
        self._check(device, launches, host)
        if process is None:
            owners, counts = np.unique(device_of if len(device) else host_of, return_counts=True)
            process = int(owners[np.argmax(counts)])
        launches = launches.take(launch_of == process)
        device = describe(device.take(device_of == process), launches, self._nccl(process))
        words = {name: codes.words for name, codes in self._codes.items()}
        device, launches, host = (
            _with_words(table, words) for table in (device, launches, host.take(host_of == process))
        )
        alone = len(np.unique(device_of if len(device_of) else host_of[self._ranges.is_step])) <= 1
        export = self._export
        return RankTrace(
            files=[export.label],
            source="nsys",
            rank=rank_number(export.variable("RANK")) if alone else None,
            world_size=rank_number(export.variable("WORLD_SIZE")),
            device=device,
            launches=launches,
            host=host,
            sees_communication=len(device) > 0,
            notices=[*self._notices, *self._ranges.notices],
            extra={"nsys": export.product},
        )

    def _note(self, kind: str, what: str, **details: object) -> None:
        label = self._export.label
        self._notices.append(Notice(kind=kind, file=label, message=f"{label}: {what}", details=details))

    # --- tables ----------------------------------------------------------------------------------------------

    def _device(self) -> tuple[Table, Column]:
        """Return kernels, graphs, copies and sets of all processes, and the process of each."""
        kernels = self._export.integers(KERNELS, _WORK, ("demangledName", "shortName", *_GRID))
        graphs = self._export.integers(GRAPHS, _WORK)
        copies = self._export.integers(_COPIES, _WORK, ("bytes", "copyKind"))
        sets = self._export.integers(_SETS, _WORK, ("bytes",))
        if len(graphs["start"]):
            count = len(graphs["start"])
            self._note(
                "graph_kernels_missing",
                f"{count} CUDA graphs were recorded as one piece each: their kernels and collectives cannot be "
                "distinguished; record with --cuda-graph-trace=node",
                count=count,
            )
        demangled, short = kernels["demangledName"], kernels["shortName"]
        names = [
            self._name(np.where(demangled != UNKNOWN, demangled, short)),
            self._word(np.zeros(len(graphs["start"]), np.int64), {0: _GRAPH}),
            self._word(copies["copyKind"], _COPY_WORDS, "Memcpy", "Memcpy {}"),
            self._word(np.zeros(len(sets["start"]), np.int64), {0: "Memset (Device)"}),
        ]
        parts = [kernels, graphs, copies, sets]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in _WORK}
        activity = [np.full(len(part["start"]), kind) for part, kind in zip(parts, _ACTIVITIES, strict=True)]
        size = np.concatenate(
            [np.full(len(kernels["start"]) + len(graphs["start"]), UNKNOWN), copies["bytes"], sets["bytes"]]
        )
        columns = self._times(joined) | {
            "activity": np.concatenate(activity),
            "name": np.concatenate(names),
            "device": joined["deviceId"],
            "stream": joined["streamId"],
            "correlation": joined["correlationId"],
            "external_id": np.full(len(size), UNKNOWN),
            "bytes": size,
            "occupancy": np.full(len(size), UNKNOWN),
            "sm_share": np.concatenate([self._sm_share(kernels), np.full(len(size) - len(kernels["start"]), UNKNOWN)]),
        }
        table = Table(columns | _no_collective(len(size)))
        table = Table({name: table[name] for name in DEVICE_COLUMNS + COLLECTIVE_COLUMNS})
        return table, joined["globalPid"] >> PROCESS_BITS

    def _sm_share(self, kernels: dict[str, Column]) -> Column:
        """Return the share of the SMs that each kernel's grid can use."""
        sides = np.stack([kernels[name] for name in _GRID])
        blocks = np.where((sides > 0).all(axis=0), np.prod(np.maximum(sides, 1).astype(float), axis=0), 0)
        return sm_share.of_grids(blocks, self._export.sms)

    def _launches(self) -> tuple[Table, Column]:
        calls = self._export.integers(_CALLS, ("start", "end", "globalTid", "correlationId", "nameId"))
        columns = self._times(calls) | {
            "name": self._name(calls["nameId"], _VERSION),
            "thread": self._thread(calls["globalTid"]),
            "correlation": calls["correlationId"],
        }
        return Table({name: columns[name] for name in LAUNCH_COLUMNS}), calls["globalTid"] >> PROCESS_BITS

    def _host(self, *, with_device: bool) -> tuple[Table, Column]:
        """Return the ranges. Without a GPU, those inside a step count as the host's work, not as annotations."""
        ranges = self._ranges
        process = ranges.thread >> PROCESS_BITS
        count = len(ranges.names)
        work = np.zeros(count, bool) if with_device else _inside_steps(ranges)
        columns = self._times({"start": ranges.start, "end": ranges.end}) | {
            "name": self._codes["name"].encode(ranges.names),
            "thread": self._thread(ranges.thread),
            "external_id": np.full(count, UNKNOWN),
            "annotation": (~work).astype(np.int64),
        }
        columns |= _no_collective(count)
        return Table({name: columns[name] for name in HOST_COLUMNS}), process

    def _times(self, columns: dict[str, Column]) -> dict[str, Column]:
        start, end = columns["start"], columns["end"]
        known = (start != UNKNOWN) & (end != UNKNOWN)
        return {
            "start": np.where(start != UNKNOWN, start + (self._origin or 0), UNKNOWN),
            "duration": np.where(known, end - np.where(known, start, 0), UNKNOWN),
        }

    def _name(self, ids: Column, without: re.Pattern[str] | None = None) -> Column:
        found = self._export.strings(ids)
        if without is not None:
            found = {key: without.sub("", text) for key, text in found.items()}
        return self._word(ids, found)

    def _word(self, values: Column, words: dict[int, str], other: str | None = None, form: str = "{}") -> Column:
        """Return the codes of `words[value]`, formatted with `form`; the code of `other` if there is no such word."""
        distinct, index = np.unique(values, return_inverse=True)
        texts = [form.format(words[value]) if value in words else other for value in distinct.tolist()]
        return self._codes["name"].encode(texts)[index] if len(values) else np.zeros(0, np.int32)

    def _thread(self, ids: Column) -> Column:
        distinct, index = np.unique(ids, return_inverse=True)
        names = [(value >> PROCESS_BITS & 0xFFFFFF, value & 0xFFFFFF) for value in distinct.tolist()]
        return self._codes["thread"].encode(names)[index] if len(ids) else np.zeros(0, np.int32)

    def _check(self, device: Table, launches: Table, host: Table) -> None:
        if len(device):
            if not len(host):
                self._note("no_nvtx", "holds no NVTX ranges: numbers of the whole window only; trace with -t cuda,nvtx")
            return
        words = self._codes["name"].words
        launching = np.array([is_launch(word) for word in words] + [False])
        count = int(launching[launches["name"]].sum()) if len(launches) else 0
        if count:
            raise self._export.fail(
                "gpu_records_missing",
                f"{count} launches but not one GPU record: CUPTI did not run (another profiler attached, or no "
                "permission); record it again with one profiler at a time",
            )
        if not len(host):
            raise self._export.fail(
                "no_activity",
                "holds neither CUDA nor NVTX rows; was the capture range reached, and traced with -t cuda,nvtx?",
            )
        self._note(
            "no_cuda",
            "holds no CUDA tables: host times of NVTX ranges only, and no collectives",
        )

    def _nccl(self, process: int) -> NcclCalls:
        ranges = self._ranges
        rows = [
            row
            for row, name in enumerate(ranges.collective)
            if name is not None and int(ranges.thread[row]) >> PROCESS_BITS == process
        ]
        at = np.array(rows, np.int64)
        at = at[np.argsort(ranges.start[at], kind="stable")]
        names = [ranges.collective[row] for row in at.tolist()]
        origin = self._origin or 0
        return NcclCalls(
            start=ranges.start[at] + origin,
            end=np.where(ranges.end[at] == UNKNOWN, UNKNOWN, ranges.end[at] + origin),
            thread=self._thread(ranges.thread[at]),
            name=self._codes["collective"].encode(names),
            kinds=[collective_kind(name) for name in names],
            group=self._codes["group"].encode([ranges.communicator[row] for row in at.tolist()]),
            size=ranges.message_bytes[at],
            words=self._codes["name"].words,
        )


_ACTIVITIES = (KERNEL, KERNEL, MEMCPY, MEMSET)


def _inside_steps(ranges: Ranges) -> Column:
    """Return which ranges are inside a step of their thread and are not a wait for the data loader."""
    steps = np.flatnonzero(ranges.is_step)
    steps = steps[np.lexsort([ranges.start[steps], ranges.thread[steps]])]
    inside = np.zeros(len(ranges.names), bool)
    for thread in np.unique(ranges.thread[steps]).tolist():
        own = steps[ranges.thread[steps] == thread]
        at = np.searchsorted(ranges.start[own], ranges.start, "right") - 1
        inside |= (ranges.thread == thread) & (at >= 0) & (ranges.end <= ranges.end[own][np.maximum(at, 0)])
    return np.asarray(inside & ~ranges.is_step & ~ranges.is_wait & (ranges.end != UNKNOWN))


def _no_collective(count: int) -> dict[str, Column]:
    return {
        name: np.full(count, -1, np.int32) if name in CODED else np.full(count, UNKNOWN) for name in COLLECTIVE_COLUMNS
    }


def _with_words(table: Table, words: dict[str, list[str]]) -> Table:
    return Table(table.columns, {name: words.get(name, []) for name in table.columns if name in CODED})
