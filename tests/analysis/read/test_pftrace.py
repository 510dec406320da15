"""Perfetto traces give the same tables and the same summary as the JSON traces of the same steps."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.analysis import load, summarise
from rankscope.analysis.commands.analyze import main
from rankscope.analysis.commands.timeline import main as timeline
from rankscope.analysis.core.notices import UnreadableTraceError
from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.analysis.options import Options
from rankscope.analysis.read.kineto import reader as kineto
from rankscope.analysis.read.pftrace import reader as pftrace
from rankscope.analysis.read.pftrace.reader import lengths
from rankscope.analysis.read.rank_trace import RankTrace

from .pftrace_files import like_cuspy, pb, perfetto

TRACES = Path(__file__).parents[2] / "data" / "traces"
FOLDERS = ("big_straggler_gpu_w4", "comm_bound_w4", "cuda_graphs_w2", "fsdp2_w2", "two_groups_w2")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Write each recording in both forms."""
    folders = {}
    for name in FOLDERS:
        old, new = (tmp_path_factory.mktemp(f"{name}-{form}") for form in ("json", "pftrace"))
        for place, source in enumerate(sorted((TRACES / name).glob("rank*.json.gz"))):
            document = like_cuspy(source, old / source.name.removesuffix(".gz"))
            content = perfetto(document, sparse=place == 1).SerializeToString()
            # torch compresses whatever the file is called
            (new / f"rank{place}.pftrace{'.gz' if place else ''}").write_bytes(gzip.compress(content))
        folders[name] = (old, new)
    return folders


def rows(table: Table) -> list[tuple[Any, ...]]:
    """Return the rows in order of their content: torch writes the kinds of records one after another."""
    columns = [table.texts(name) if name in table.words else table[name].tolist() for name in sorted(table.columns)]
    return sorted(zip(*columns, strict=True), key=repr)


def one(folder: Path, rank: int, ending: str) -> Path:
    return next(folder.glob(f"rank{rank}.{ending}*"))


@pytest.mark.parametrize("name", FOLDERS)
def test_tables_are_those_of_the_json(name: str, both: dict[str, tuple[Path, Path]]) -> None:
    old, new = both[name]
    for rank in (0, 1):
        expected: RankTrace = kineto.read(one(old, rank, "json"), fast=False)
        found = pftrace.read(one(new, rank, "pftrace"))
        for part in ("device", "launches", "host"):
            assert rows(getattr(found, part)) == rows(getattr(expected, part)), part
        assert found.complete and not found.notices


@pytest.mark.parametrize("name", FOLDERS)
def test_the_summary_is_that_of_the_json(name: str, both: dict[str, tuple[Path, Path]]) -> None:
    old, new = both[name]
    expected, found = (
        json.dumps(summarise(load(folder, options=Options(cache=False, progress=False))), default=str)
        for folder in (old, new)
    )
    assert re.sub(r"\.pftrace(\.gz)?", ".json", found) == re.sub(r"\.json(\.gz)?", ".json", expected)


def test_a_folder_and_a_file_are_analysed(both: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    _, new = both["two_groups_w2"]
    assert main([str(new), "--json", str(tmp_path / "summary.json"), "--quiet", "--no-cache"]) in (0, 3)
    assert json.loads((tmp_path / "summary.json").read_text())["world_size"] == 2
    assert main([str(one(new, 0, "pftrace")), "--quiet", "--no-cache"]) in (0, 3)


def test_full_timeline_says_why_it_is_refused(
    both: dict[str, tuple[Path, Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, new = both["two_groups_w2"]
    arguments = [str(new), "--out", str(tmp_path), "--make", "perfetto", "--full", "--quiet", "--no-cache"]
    assert timeline(arguments) == 2
    assert "already opens in Perfetto" in capsys.readouterr().err


def made(kinds: str, tracks: list[int], times: list[int]) -> list[int]:
    """Return the lengths of slices, written as `(` and `)`."""
    codes = np.array(["()".index(kind) + 1 for kind in kinds], np.int8)
    found: list[int] = lengths(codes, np.array(tracks, np.uint64), np.array(times)).tolist()
    return found


def test_lengths_of_slices() -> None:
    assert made("(())", [1, 1, 1, 1], [10, 20, 20, 35]) == [10, 15]  # the slices touch
    assert made("(())", [1, 2, 2, 1], [10, 20, 30, 50]) == [40, 10]  # in another order: by track
    assert made("(()", [1, 1, 1], [10, 20, 30]) == [UNKNOWN, 10]  # the inner one ends first
    assert made(")(", [1, 1], [5, 10]) == [UNKNOWN]
    assert made("", [], []) == []


def small() -> Any:
    """Return a trace of one step with one operator, one launch and one kernel."""
    common = {"ph": "X", "pid": 7, "tid": 7, "dur": 100.5}
    call, kernel = {"cbid": 1, "correlation": 5}, {"device": 0, "stream": 7, "correlation": 5}
    events = [
        common | {"cat": "user_annotation", "name": "ProfilerStep#1", "ts": 1000.25},
        common | {"cat": "cpu_op", "name": "aten::mm", "ts": 1001, "dur": 5, "args": {"External id": 3}},
        common | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1002, "dur": 2, "args": call},
        common | {"cat": "kernel", "name": "gemm", "ts": 1010, "dur": 20, "pid": 0, "tid": 7, "args": kernel},
    ]
    return perfetto({"baseTimeNanoseconds": 1_700_000_000_000_000_000, "traceEvents": events})


def read(content: bytes, folder: Path) -> RankTrace:
    path = folder / "rank0.pftrace"
    path.write_bytes(content)
    return pftrace.read(path)


def test_times_are_wall_clock_to_the_nanosecond(tmp_path: Path) -> None:
    host = read(small().SerializeToString(), tmp_path).host
    assert host["start"].tolist() == [1_700_000_000_001_000_250, 1_700_000_000_001_001_000]
    assert host["duration"].tolist() == [100_500, 5_000] and host["external_id"].tolist() == [UNKNOWN, 3]


def test_the_snapshot_gives_the_wall_clock(tmp_path: Path) -> None:
    trace = small()
    for item in trace.packet:
        if item.HasField("clock_snapshot"):
            item.clock_snapshot.clocks[1].timestamp += 1_000  # REALTIME is 1 us ahead
    assert read(trace.SerializeToString(), tmp_path).host["start"][0] == 1_700_000_000_001_001_250


@pytest.mark.parametrize("cut", [1, 40, 400])
def test_a_cut_file_is_read_as_far_as_possible(cut: int, tmp_path: Path) -> None:
    content = small().SerializeToString()
    found = read(content + b"\x0a\x05", tmp_path)
    assert not found.complete and f"ends at byte {len(content)} (decompressed)" in found.notices[-1].message
    try:
        read(content[:-cut], tmp_path)
    except UnreadableTraceError as error:
        assert error.notice.file == "rank0.pftrace"


def _without_names(trace: Any) -> None:
    for item in trace.packet:
        del item.interned_data.event_names[:]


def _deep(trace: Any) -> None:
    inner = next(item for item in trace.packet if item.track_event.type == 1).track_event.debug_annotations.add(
        name="x"
    )
    for _ in range(60):
        inner = inner.array_values.add()


def _other_clock(trace: Any) -> None:
    for item in trace.packet:
        if item.HasField("gpu_render_stage_event"):
            item.timestamp_clock_id = 64


def _compressed(trace: Any) -> None:
    trace.packet.add().compressed_packets = b"x"


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (_without_names, "names_missing"),
        (_deep, "packets_damaged"),
        (_other_clock, "times_unknown"),
        (_compressed, "packets_compressed"),
    ],
)
def test_what_cannot_be_read_is_counted(harm: Any, kind: str, tmp_path: Path) -> None:
    trace = small()
    harm(trace)
    path = tmp_path / "rank0.pftrace"
    path.write_bytes(trace.SerializeToString())
    reader = pftrace.PftraceReader(path, "rank0.pftrace")
    list(reader)
    assert not reader.complete and [notice.kind for notice in reader.notices] == [kind]


def test_unknown_fields_and_packets_change_nothing(tmp_path: Path) -> None:
    trace = small()
    expected = read(trace.SerializeToString(), tmp_path)
    trace.packet.add().process_stats.SetInParent()
    unknown = bytes.fromhex("f8ff03 01 fa ff 03 02 aabb".replace(" ", ""))
    content = trace.SerializeToString()
    found = read(content + b"\x0a" + bytes([len(unknown)]) + unknown, tmp_path)
    for part in ("device", "launches", "host"):
        assert rows(getattr(found, part)) == rows(getattr(expected, part))
    assert found.complete


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"not a trace", "begins no packet"),
        (b"\x0a" + b"\xff" * 20, "a number has more than 10 bytes"),
        (b"\x0a\xff\xff\xff\xff\x7f" + b"x" * 100, "would have 32767 MiB"),
        (b"\x0a\x80\x01" + b"x" * 20, "cut off"),
        (b"\x0a\x02\x5b\x5c", "not a Perfetto trace"),
        (gzip.compress(b"\x0a\x00" * 1000, mtime=0), "not a Perfetto trace"),
        (gzip.compress(bytes(range(256)), mtime=0)[:-20], "not a Perfetto trace"),
    ],
    ids=["empty", "text", "long number", "giant", "cut", "nonsense", "empty packets", "cut gzip"],
)
def test_what_is_no_trace_is_one_line(content: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableTraceError, match=re.escape(said)) as raised:
        read(content, tmp_path)
    assert raised.value.notice.message.startswith("rank0.pftrace: ")


def test_random_damage_never_escapes(tmp_path: Path) -> None:
    content, rng = small().SerializeToString(), np.random.default_rng(7)
    for _ in range(400):
        damaged = bytearray(content)
        for at in rng.integers(0, len(damaged), rng.integers(1, 4)):
            damaged[at] = rng.integers(0, 256)
        try:
            read(bytes(damaged), tmp_path)
        except UnreadableTraceError:
            continue


def test_the_classes_have_the_numbers_that_are_read() -> None:
    """The numbers of fields that the reader knows are those of Perfetto's own description."""
    numbers = {
        pb.TracePacket: {"timestamp": 8, "timestamp_clock_id": 58, "track_event": 11, "gpu_render_stage_event": 53},
        pb.TrackEvent: {"type": 9, "track_uuid": 11, "name_iid": 10, "category_iids": 3, "debug_annotations": 4},
        pb.GpuRenderStageEvent: {"duration": 2, "gpu_id": 11, "stage_iid": 14, "name_iid": 20, "kernel_iid": 19},
    }
    for message, fields in numbers.items():
        assert {name: message.DESCRIPTOR.fields_by_name[name].number for name in fields} == fields
