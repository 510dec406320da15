"""Recordings are untrusted: mutated real ones give numbers or one line, never a crash, a hang or a page not ours."""

import json
import random
import re
import shutil
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rankscope.analysis import Analysis, AnalysisError, load, summarise
from rankscope.analysis.options import Options
from rankscope.analysis.read.rank_trace import MAX_RANKS

DATA = Path(__file__).parents[2] / "data"
EXPORTS = [DATA / "nsys" / "big_baseline_w4" / "rank0.sqlite", DATA / "nsys" / "gloo_w2" / "rank_0.sqlite"]
DEEP = "[" * 100_000 + "]" * 100_000
QUICK = settings(
    max_examples=40,
    deadline=timedelta(seconds=10),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, -1, 1 << 31, 1 << 53, 1 << 63, 10**30]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.lists(st.integers(-1, 5), max_size=3),
    st.dictionaries(st.sampled_from(["a", "rank", "correlation"]), st.integers(), max_size=2),
)


def survives(path: Path, *, fast: bool = False) -> Analysis | None:
    """Return the analysis of what lies at `path`, None where it was refused in one line."""
    try:
        analysis = load(path, options=Options(cache=False, fast=fast))
        json.dumps(summarise(analysis), allow_nan=False)
    except AnalysisError as error:
        assert "\n" not in str(error) and str(error)
        return None
    return analysis


def piece(name: str, count: int = 60) -> dict[str, Any]:
    """Return a real trace with its steps and some of its events."""
    trace: dict[str, Any] = json.loads((DATA / "cases" / name / "rank0.json").read_text())
    steps = [event for event in trace["traceEvents"] if "ProfilerStep" in str(event.get("name"))]
    some = random.Random(0).sample(trace["traceEvents"], min(count, len(trace["traceEvents"])))
    return trace | {"traceEvents": steps + some}


CASES = sorted(path.parent.name for path in (DATA / "cases").glob("*/rank0.json") if path.stat().st_size < 40_000)


@QUICK
@given(data=st.data())
def test_traces_with_any_values(data: st.DataObject, tmp_path: Path) -> None:
    try:
        trace = piece(data.draw(st.sampled_from(CASES)))
    except ValueError:  # a case that is damaged already
        return
    for _ in range(data.draw(st.integers(1, 4))):
        target = data.draw(st.sampled_from([trace, trace.setdefault("distributedInfo", {}), *trace["traceEvents"]]))
        if not isinstance(target, dict) or not target:
            continue
        inner = target.get("args")
        place = inner if isinstance(inner, dict) and inner and data.draw(st.booleans()) else target
        key = data.draw(st.sampled_from(sorted(place)))
        if key != "traceEvents":
            place[key] = data.draw(VALUES)
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(trace))
    survives(path)


@QUICK
@given(data=st.data())
def test_exports_with_any_values(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    shutil.copyfile(data.draw(st.sampled_from(EXPORTS)), path)
    with sqlite3.connect(path) as database:
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(data.draw(st.integers(1, 4))):
            table = data.draw(st.sampled_from(names))
            columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
            if not columns:
                continue
            column = data.draw(st.sampled_from(columns))
            match data.draw(st.sampled_from(["set", "set", "all", "drop column", "drop table"])):
                case "set" | "all" as how:
                    value = data.draw(
                        st.one_of(
                            st.none(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=5), st.binary(max_size=9)
                        )
                    )
                    rows = "" if how == "all" else f" WHERE rowid % 7 = {data.draw(st.integers(0, 6))}"
                    try:
                        database.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ?{rows}', (value,))
                    except (sqlite3.Error, UnicodeEncodeError):
                        continue
                case "drop column":
                    try:
                        database.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
                    except sqlite3.Error:
                        continue
                case _:
                    database.execute(f'DROP TABLE "{table}"')
                    names.remove(table)
    database.close()
    survives(path)


@QUICK
@given(place=st.floats(0, 1), junk=st.binary(min_size=1, max_size=64), cut=st.booleans())
@example(place=0.0, junk=b"x", cut=True)
def test_exports_with_damaged_bytes(place: float, junk: bytes, cut: bool, tmp_path: Path) -> None:
    whole = EXPORTS[1].read_bytes()
    at = int(place * len(whole))
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(whole[:at] + junk + (b"" if cut else whole[at + len(junk) :]))
    survives(path)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"schemaVersion": 1', f'"schemaVersion": {DEEP}'),
        ('"correlation": 2', f'"correlation": {DEEP}'),
        ('"correlation": 2', '"correlation": ' + '{"a":' * 100_000),
        ('"correlation": 2', '"correlation": ' + "9" * 5000),
        ('"rank": 0', '"rank": 99999999999'),
        ('"world_size": 1', '"world_size": 99999999999'),
    ],
)
def test_nesting_and_sizes_have_limits(old: str, new: str, fast: bool, tmp_path: Path) -> None:
    args = {"stream": 7, "device": 0}
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": "k",
            "pid": 0,
            "tid": 7,
            "ts": 10.0 * i,
            "dur": 5,
            "args": args | {"correlation": i},
        }
        for i in range(30)
    ]
    trace = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}
    text = json.dumps(trace)
    assert old in text
    path = tmp_path / "rank0.json"
    path.write_text(text.replace(old, new, 1))
    found = survives(path, fast=fast)
    assert found is None or found.world_size <= MAX_RANKS


def test_a_rank_s_own_files_are_untrusted_too(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(DATA / "runs" / "resnet_w2", run)
    ranks = run / "passes" / "torch" / "ranks"
    for text in (DEEP, '{"world_size": 99999999999, "notes": {"a": 1}}', '{"world_size": "2", "notes": 7}', "[]"):
        (ranks / "0" / "rank.json").write_text(text)
        found = survives(run)
        assert found is not None and found.world_size == 2
    (ranks / ("9" * 30)).mkdir()
    assert survives(run) is not None
    (run / "run.json").write_text(DEEP)
    assert survives(run) is None


def test_names_from_a_trace_are_text_in_every_page(tmp_path: Path) -> None:
    from rankscope.analysis.commands.analyze import main

    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    run = tmp_path / "run"
    shutil.copytree(DATA / "runs" / "resnet_w2", run)
    import gzip

    for path in run.glob("passes/torch/ranks/*/trace.json.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        for event in trace["traceEvents"]:
            if event.get("cat") in ("kernel", "cpu_op"):
                event["name"] = evil + event["name"]
        path.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    assert main([str(run)]) in (0, 3)
    from rankscope.analysis.commands.timeline import main as timeline

    assert timeline([str(run)]) in (0, 3)
    pages = [*run.glob("analysis/**/*.html"), *run.glob("analysis/**/*.svg")]
    assert len(pages) >= 2
    for page in pages:
        text = page.read_text()
        assert "alert(1)" not in text or evil not in text, page.name
        assert not re.search(r"<img src=x", text), page.name
