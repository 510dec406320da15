"""The two ways to read a trace give the same, whatever the input and the window; and what `json` with Decimal gives."""

import gzip
import itertools
import json
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis.core.notices import UnreadableTraceError
from rankscope.analysis.core.record_kinds import part_of
from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.analysis.read.decode import nanoseconds
from rankscope.analysis.read.kineto import reader as kineto

from .mutations import mutated, sources

DATA = Path(__file__).parents[2] / "data"
CASES = sorted(path for path in (DATA / "cases").glob("*/rank*") if path.suffix != ".tmp")
TRACES = sorted((DATA / "traces").glob("*/rank0.json.gz"))
WINDOWS = (None, 700, 1024, 4000)

needs_numba = pytest.mark.skipif(
    not kineto.has_scanner(), reason="numba is not installed: pip install 'rankscope[fast]'"
)


def content(path: Path, *, fast: bool, window: int | None = None) -> Any:
    """Return everything that was read but the places of the events, codes as their words."""
    try:
        trace = kineto.read(path, fast=fast, window=window)
    except UnreadableTraceError as error:
        return error.notice.as_dict()
    tables = {part: values(getattr(trace, part)) for part in ("device", "launches", "host")}
    rest = (trace.rank, trace.world_size, trace.backend, trace.groups, trace.complete, trace.extra)
    return tables, rest, [notice.as_dict() for notice in trace.notices]


def values(table: Table) -> dict[str, list[Any]]:
    return {
        name: table.texts(name) if name in table.words else column.tolist() for name, column in table.columns.items()
    }


@needs_numba
@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_readers_agree_on_cases(path: Path) -> None:
    expected = content(path, fast=False)
    for window in WINDOWS:
        assert content(path, fast=True, window=window) == content(path, fast=False, window=window)
    assert content(path, fast=True) == expected


@needs_numba
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.parent.name)
def test_readers_agree_on_real_traces(path: Path) -> None:
    expected = content(path, fast=False)
    for window in (None, 30_000):
        assert content(path, fast=True, window=window) == expected


@needs_numba
def test_small_windows_of_a_real_trace(tmp_path: Path) -> None:
    text = gzip.decompress((DATA / "traces" / "comm_bound_w4" / "rank0.json.gz").read_bytes())
    path = tmp_path / "rank0.json"
    path.write_bytes(text)
    assert content(path, fast=True, window=1024) == content(path, fast=False)


@needs_numba
def test_readers_agree_on_mutated_events(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    for text, window in itertools.islice(mutated(sources(DATA), seed=1), 600):
        path.write_bytes(text)
        assert content(path, fast=True, window=window) == content(path, fast=False, window=window), text


INPUTS = (
    "cases/T12-sub-microsecond/rank0.json",
    "cases/T09-base-time-offset/rank0.json",
    "cases/D01-fast-rank-long-allreduce/rank1.json",
    "cases/T25-big-integers/rank0.json",
    "traces/cuda_graphs_w2/rank0.json.gz",
    "traces/two_groups_w2/rank1.json.gz",
)


@pytest.mark.parametrize("name", INPUTS)
def test_as_json_and_decimal_say(name: str, fast: bool) -> None:
    text = (DATA / name).read_bytes()
    document = json.loads(gzip.decompress(text) if name.endswith(".gz") else text, parse_float=Decimal)
    trace = kineto.read(DATA / name, fast=fast)
    for part in ("device", "launches", "host"):
        events = [e for e in document["traceEvents"] if e["ph"] == "X" and part_of(e.get("cat")) == part]
        if part == "device":
            events.sort(key=lambda e: Decimal(e["ts"]))
        base = int(document.get("baseTimeNanoseconds", 0))
        found = values(getattr(trace, part))
        assert found["start"] == [int(Decimal(e["ts"]) * 1000) + base for e in events]
        assert found["duration"] == [int(Decimal(e["dur"]) * 1000) for e in events]
        assert found["name"] == [e["name"] for e in events]
        for column, key in _ARGUMENTS[part].items():
            expected = [e.get("args", {}).get(key) for e in events]
            assert found[column] == [UNKNOWN if value is None and column not in _TEXTS else value for value in expected]


_TEXTS = ("collective", "dtype", "group", "group_ranks")
_CALL = {
    "collective": "Collective name", "in_nelems": "In msg nelems", "group_size": "Group size", "dtype": "dtype",
    "group": "Process Group Name", "group_ranks": "Process Group Ranks", "seq": "Seq",
}  # fmt: skip
_ARGUMENTS = {
    "device": {"stream": "stream", "correlation": "correlation", "bytes": "bytes", **_CALL},
    "launches": {"correlation": "correlation"},
    "host": {"external_id": "External id"},
}


@needs_numba
def test_one_event_without_end_is_refused(tmp_path: Path, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankscope.analysis.read.kineto import events

    monkeypatch.setattr(events, "MAX_EVENT", 100_000)
    path = tmp_path / "rank0.json"
    path.write_bytes(b'{"traceEvents": [{"ph": "X", "name": "' + b"x" * 300_000 + b'"}]}')
    with pytest.raises(UnreadableTraceError, match="no event ends within"):
        kineto.read(path, fast=fast, window=50_000)


@needs_numba
def test_layouts_are_scanned_and_not_handed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compact, indented and one-line layouts, escapes and names that are not ASCII are the scanner's own work."""
    from rankscope.analysis.read.kineto.events import EventReader

    plain = {"ph": "X", "cat": "cpu_op", "name": 'a"\\{}[]é', "pid": 1, "tid": 2, "ts": 1.5, "dur": 2}
    nested = {"args": {"External id": 7, "x": [[1], []], "y": {"z": ["b", None, 1e-5]}}, "dur": 0.125, "ts": 2}
    events = [plain, nested | {"tid": 2, "pid": 1, "name": "b", "cat": "cpu_op", "ph": "X"}] * 50
    events.append(plain | {"cat": "kernel", "args": {"blocks per SM": 0.0075757578, "stream": 7, "correlation": 3}})

    def refuse(*_: object) -> None:
        raise AssertionError("handed over")

    for layout in ({}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}):
        path = tmp_path / "rank0.json"
        path.write_text(json.dumps({"traceEvents": events}, **layout))
        expected = content(path, fast=False)
        with monkeypatch.context() as patch:
            patch.setattr(EventReader, "_whole_events", refuse)
            assert content(path, fast=True) == expected
        assert re.search(r"é", expected[0]["host"]["name"][0])


@needs_numba
def test_many_names_and_more_rows_than_a_buffer_holds(tmp_path: Path) -> None:
    """The tables of symbols grow, and rows are handed on before a window ends."""
    short = '{"ph":"X","cat":"cpu_op","name":"%d","pid":1,"tid":%d,"ts":%d,"dur":1}'
    long = '{"ph":"X","cat":"kernel","name":"%s%d","pid":0,"tid":7,"ts":%d,"dur":1,"args":{"stream":7,"device":0}}'
    events = [short % (n % 9000, n % 3, n) for n in range(40_000)] + [long % ("k" * 700, n, n) for n in range(2000)]
    path = tmp_path / "rank0.json"
    path.write_text('{"traceEvents":[' + ",".join(events) + "]}")
    assert content(path, fast=True) == content(path, fast=False)


def test_a_broken_numba_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba that does not fit the installed numpy fails when imported: the other way reads the trace."""
    monkeypatch.setitem(sys.modules, "rankscope.analysis.read.kineto.fast.scanner", None)
    monkeypatch.setattr(kineto, "has_scanner", lambda: True)
    assert len(kineto.read(TRACES[0]).device)


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    heavy = "{'numba', 'matplotlib', 'numpy', 'pandas', 'pyarrow', 'torch'}"  # a kept answer needs none of them
    modules = "rankscope.analysis.commands.analyze, rankscope.analysis.show.terminal"
    code = f"import sys, {modules}; print(*{heavy} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


def test_tables_are_kept_without_pandas_and_arrow(tmp_path: Path) -> None:
    """It would cost more to import than a small analysis takes."""
    code = (
        "import sys, pathlib; from rankscope.analysis.core.packed import write_table; "
        "from rankscope.analysis.read.kineto.reader import read; "
        f"trace = read(pathlib.Path({str(TRACES[0])!r}), fast=False); "
        "write_table(pathlib.Path(sys.argv[1], 'host.z'), trace.host); "
        "print('pandas' in sys.modules or 'pyarrow' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("microseconds", "expected"),
    [
        (["9" * 40], UNKNOWN),  # the fuzzer's: more digits than 64 bits hold
        (["999999999999999.5"], 999_999_999_999_999_500),
        ([10**16, 5], UNKNOWN),
        ([-(2**63)], UNKNOWN),
        ([2**63 - 1], UNKNOWN),
        ([True], UNKNOWN),
        ([[]], UNKNOWN),  # the fuzzer's
        ([[1.5]], UNKNOWN),
    ],
)
def test_what_is_no_time_of_64_bits_is_unknown(microseconds: list[object], expected: int) -> None:
    assert nanoseconds(microseconds)[0] == expected
