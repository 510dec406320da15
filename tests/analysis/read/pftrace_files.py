"""Writes a JSON trace of torch.profiler as a Perfetto trace, packet by packet as torch's own writer does.

The layout is that of pytorch/pytorch, torch/csrc/profiler/cuspy/cuspy_pftrace.cpp  and torch/profiler/_cuspy/trace.py.
The messages are Perfetto's own classes, so nothing of what reads them is used here.
"""

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis.read.decode import integers, nanoseconds

pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="pip install perfetto")

Events = list[dict[str, Any]]
_STAGES = {"kernel": 1, "gpu_memcpy": 2, "gpu_memset": 3, "gpu_user_annotation": 4}
_STAGE_NAMES = ("Kernel", "Memcpy", "Memset", "Annotation", "EventRecord", "HostNode")
_RUNTIME = ("cuda_runtime", "cuda_driver")
_NUMBERS = {"device": "device id", "context": "context id", "stream": "stream id"}
_SCALARS = ("correlation", "priority", "queued", "channel", "graph id", "bytes")
# Of a JSON trace: what the Perfetto trace of the same job does not have.
_ABSENT = ("blocks per SM", "warps per SM", "est. achieved occupancy %")


def like_cuspy(source: Path, target: Path) -> dict[str, Any]:
    """Write a JSON trace with what both forms of a trace have, and return it."""
    text = source.read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text)
    for key in ("distributedInfo", "deviceProperties", "with_stack", "record_shapes"):
        document.pop(key, None)
    for event in document["traceEvents"]:
        if event.get("cat") in ("gpu_memcpy", "gpu_memset"):
            event["name"] = "Memcpy" if event["cat"] == "gpu_memcpy" else "Memset"
        for key in _ABSENT:
            (event.get("args") or {}).pop(key, None)
    target.write_text(json.dumps(document))
    return document


class Writer:
    """Collects packets. `words` are the tables that slices refer to."""

    def __init__(self, base: int) -> None:
        self.trace = pb.Trace()
        self.base = base
        self.names: dict[str, int] = {}
        self.categories: dict[str, int] = {}
        self.kernels: dict[str, int] = {}
        self._tracks: dict[tuple[Any, ...], int] = {}

    def packet(self, time: int | None = None, flags: int = 0) -> Any:
        found = self.trace.packet.add(trusted_packet_sequence_id=1)
        if time is not None:
            found.timestamp = time
        if flags:
            found.sequence_flags = flags
        return found

    def track(self, pid: int, tid: int) -> int:
        """Return the track of a thread, below that of its process."""
        for key in ((pid,), (pid, tid)):
            if key not in self._tracks:
                self._tracks[key] = len(self._tracks) + 1
                track = self.trace.packet.add().track_descriptor
                track.uuid = self._tracks[key]
                if len(key) == 1:
                    track.process.pid, track.process.process_name = pid, "python"
                else:
                    track.parent_uuid = self._tracks[(pid,)]
                    track.thread.pid, track.thread.tid, track.thread.thread_name = pid, tid, f"thread {tid}"
        return self._tracks[pid, tid]

    def clocks(self) -> None:
        snapshot = self.packet(self.base).clock_snapshot
        for clock in (6, 1):  # BOOTTIME and REALTIME are the same
            snapshot.clocks.add(clock_id=clock, timestamp=self.base)

    def words(self, streams: Iterable[tuple[int, int]]) -> None:
        interned = self.packet(flags=1).interned_data
        for table, words in ((interned.event_names, self.names), (interned.event_categories, self.categories)):
            for word, iid in words.items():
                table.add(iid=iid, name=word)
        for iid, name in enumerate(_STAGE_NAMES, 1):
            interned.gpu_specifications.add(iid=iid, name=name, category=2 if iid == 1 else 0)
        for place, (_, stream) in enumerate(streams):
            interned.gpu_specifications.add(iid=100 + place, name=f"[{stream}] stream {stream}")
        interned.graphics_contexts.add(iid=1, pid=1)
        for word, iid in self.kernels.items():  # field 1000, which the class does not know
            content = pb.InternedComputeKernel(iid=iid, demangled_name=word).SerializeToString()
            interned.MergeFromString(_tagged(1000, content))

    def group(self, rows: Events, args: Callable[[Any, dict[str, Any]], None]) -> None:
        """Write the begins of all slices and then their ends."""
        for event, start in zip(rows, times(rows, self.base), strict=True):
            event["start"] = start
            slice_ = self.packet(start, 2).track_event
            slice_.type, slice_.track_uuid = 1, self.track(event["pid"], event["tid"])
            slice_.name_iid = self.names[event["name"]]
            slice_.category_iids.append(self.categories[event["cat"]])
            args(slice_, event.get("args") or {})
        for event, length in zip(rows, nanoseconds([event.get("dur", 0) for event in rows]).tolist(), strict=True):
            end = self.packet(event["start"] + length).track_event
            end.type, end.track_uuid = 2, self.track(event["pid"], event["tid"])


def times(rows: Events, base: int) -> list[int]:
    return [base + time for time in nanoseconds([event["ts"] for event in rows]).tolist()]


def _tagged(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _value(annotation: Any, value: Any) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            entry = annotation.dict_entries.add(name=key)
            _value(entry, inner)
    elif isinstance(value, list):
        for inner in value:
            _value(annotation.array_values.add(), inner)
    elif isinstance(value, bool):
        annotation.bool_value = value
    elif isinstance(value, float):
        annotation.double_value = value
    elif isinstance(value, int):
        annotation.int_value = value
    else:
        annotation.string_value = "null" if value is None else value


def _all_args(slice_: Any, args: dict[str, Any]) -> None:
    for key in sorted(args):
        _value(slice_.debug_annotations.add(name=key), args[key])


def _of_call(slice_: Any, args: dict[str, Any]) -> None:
    for key in ("cbid", "correlation"):
        slice_.debug_annotations.add(name=key, int_value=int(integers([args.get(key, 0)])[0]))


def perfetto(document: dict[str, Any], *, sparse: bool = False) -> Any:
    """Return a JSON document as Perfetto's `Trace`. `sparse`: kernels are named by their own table only."""
    writer = Writer(int(document.get("baseTimeNanoseconds", 0)))
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    host = [event for event in events if event.get("cat") in ("cpu_op", "user_annotation")]
    calls = [event for event in events if event.get("cat") in _RUNTIME]
    work = [event for kind in _STAGES for event in events if event.get("cat") == kind]
    for event in host + calls + ([] if sparse else work):
        writer.names.setdefault(event["name"], len(writer.names) + 1)
    for event in host + calls:
        writer.categories.setdefault(event["cat"], len(writer.categories) + 1)
        writer.track(event["pid"], event["tid"])
    for event in work:
        if event["cat"] == "kernel":
            writer.kernels.setdefault(event["name"], len(writer.kernels) + 1)
    streams = sorted({(event["pid"], event["tid"]) for event in work})
    writer.clocks()
    writer.words(streams)
    writer.group(host, _all_args)
    writer.group(calls, _of_call)
    _stages(writer, work, streams, sparse=sparse)
    return writer.trace


def _stages(writer: Writer, work: Events, streams: list[tuple[int, int]], *, sparse: bool) -> None:
    lengths = nanoseconds([event.get("dur", 0) for event in work]).tolist()
    for number, (event, start, length) in enumerate(zip(work, times(work, writer.base), lengths, strict=True), 1):
        stage, args = writer.packet(start, 2).gpu_render_stage_event, event.get("args") or {}
        stage.event_id, stage.duration, stage.gpu_id = number, length, event["pid"]
        stage.hw_queue_iid = 100 + streams.index((event["pid"], event["tid"]))
        stage.stage_iid, stage.context = _STAGES[event["cat"]], 1
        if event["cat"] in ("kernel", "gpu_user_annotation") and not sparse:
            stage.name_iid = writer.names[event["name"]]
        if event["cat"] == "kernel":
            stage.kernel_iid = writer.kernels[event["name"]]
            stage.launch.grid_size.x = 1
        for key, told in _NUMBERS.items():
            stage.extra_data.add(name=told, value=str(args.get(key, 0)))
        for key, value in args.items():
            if key in _SCALARS and value:
                stage.extra_data.add(name=key, value=str(value))
            elif key not in _NUMBERS and key not in _SCALARS:
                stage.extra_data.add(name=key, value=value if isinstance(value, str) else json.dumps(value))
