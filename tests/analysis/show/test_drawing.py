"""The timeline: its tables against the analysis, the picture, the Perfetto trace by Perfetto's own trace processor."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis import load
from rankscope.analysis.commands.timeline import main
from rankscope.analysis.core.intervals import union
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.measure.breakdown import PARTS
from rankscope.analysis.replay.build import build as build_graph
from rankscope.analysis.result import Analysis
from rankscope.analysis.show.summary import summarise
from rankscope.analysis.show.timeline.build import Timeline, build
from rankscope.analysis.show.timeline.sentences import step_sentence
from rankscope.analysis.show.timeline.tiles import lanes, shares, summed, tile

from .trace_processor import TraceProcessor

TRACES = Path(__file__).parents[2] / "data" / "traces"
STRAGGLER, STALL = "big_straggler_gpu_w4", "big_data_stall_rank0_w4"
INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return load(TRACES / STRAGGLER)


@pytest.fixture(scope="module")
def timeline(analysis: Analysis) -> Timeline:
    return build(analysis, STRAGGLER)


# --- tables ----------------------------------------------------------------------------------------------------


@given(st.lists(INTERVALS, min_size=1, max_size=4))
def test_tiles_cover_each_window_once_by_priority(layers: list[list[tuple[int, int]]]) -> None:
    sets = [union(*np.array([(s, s + d) for s, d in part] or [(0, 0)]).T) for part in layers]
    start, end = np.array([0, 40]), np.array([30, 80])
    table = tile(sets, list(range(len(sets))), 9, start, end)
    expected = {
        t: next((code for code, part in enumerate(sets) if ((part[0] <= t) & (t < part[1])).any()), 9)
        for a, b in ((0, 30), (40, 80))
        for t in range(a, b)
    }
    rows = zip(table["start"].tolist(), table["end"].tolist(), table["part"].tolist(), strict=True)
    found = [(t, code) for a, b, code in rows for t in range(a, b)]
    assert sorted(found) == sorted(expected.items())


@given(INTERVALS)
def test_lanes_never_overlap_and_are_as_few_as_possible(items: list[tuple[int, int]]) -> None:
    rows = sorted((start, start + length + 1) for start, length in items)
    start, end = (np.array([row[side] for row in rows], np.int64) for side in (0, 1))
    found = lanes(start, end)
    for lane in np.unique(found):
        own = found == lane
        assert (start[own][1:] >= end[own][:-1]).all()
    most = max((int(((start <= t) & (t < end)).sum()) for t in start), default=0)
    assert len(np.unique(found)) == most


def test_shares_of_a_bin() -> None:
    found = shares(np.array([0, 10]), np.array([10, 15]), np.array([0, 1]), 3, np.array([0, 5, 20]))
    assert found.tolist() == [[1.0, 5 / 15], [0.0, 5 / 15], [0.0, 0.0]]


def test_time_of_several_ranks_in_a_bin() -> None:
    """As `shares` of each rank, added up."""
    rng = np.random.default_rng(0)
    edges = np.unique(rng.integers(0, 1000, 12))
    ranks = []
    for _ in range(20):
        cuts = np.unique(rng.integers(-50, 1100, 30))
        ranks.append((cuts[:-1], cuts[1:], rng.integers(0, 3, len(cuts) - 1)))
    each = [shares(*rank, 4, edges) * np.diff(edges) for rank in ranks]
    start, end, code = (np.concatenate(column) for column in zip(*ranks, strict=True))
    assert summed(start, end, code, 4, edges) == pytest.approx(np.sum(each, axis=0))


@pytest.mark.parametrize("name", [STRAGGLER, STALL, "two_groups_w2", "fsdp2_w2", "cuda_graphs_w2"])
def test_drawn_parts_sum_to_the_breakdown(name: str) -> None:
    analysis = load(TRACES / name)
    for view in build(analysis, name).views:
        for step in analysis.steps_analysed:
            row = analysis.step_table.take(
                (analysis.step_table["step"] == step) & (analysis.step_table["rank"] == view.rank)
            )
            own = view.parts.take(view.parts["step"] == step)
            drift = abs(analysis.alignment.drift.get(view.rank, 0.0)) * 1e9  # a drawn second is one of the common clock
            for code, part in enumerate(PARTS):
                length = int((own["end"] - own["start"])[own["part"] == code].sum())
                assert length == pytest.approx(int(row[f"{part}_ns"][0]), rel=1e-4 if drift else 0, abs=2 * bool(drift))


def test_the_mark_is_what_was_planted(timeline: Timeline) -> None:
    mark = timeline.marks[timeline.typical]
    assert (mark.rank, mark.cause, mark.late) == (3, "compute", True)
    assert 6.0e6 < mark.lateness_ns == mark.start - mark.others < 7.8e6
    stall = build(load(TRACES / STALL), STALL)
    assert "rank 0" in step_sentence(stall, 6) and "waiting for data" in step_sentence(stall, 6)
    assert "not judged" in step_sentence(stall, 4)
    assert "no rank is late" in step_sentence(build(load(TRACES / "big_baseline_w4"), "b"), 6)


def test_ranges_lie_in_order_and_forward_comes_before_backward(timeline: Timeline) -> None:
    for view in timeline.views:
        names = view.ranges.texts("name")
        assert [name for name in names if name in ("forward", "backward")] == ["forward", "backward"] * 4
        assert (view.ranges["start"][1:] >= view.ranges["end"][:-1]).all()


def test_more_ranks_than_rows_are_folded(analysis: Analysis) -> None:
    folded = build(analysis, "many", most=3)
    assert 3 in folded.shown
    whole = build(analysis, "some", ranks=[0, 3])
    assert [view.rank for view in whole.views] == [0, 3]
    with pytest.raises(AnalysisError, match="the recording has no rank 7, only 0 to 3"):
        build(analysis, "none", ranks=[7])


# --- command -----------------------------------------------------------------------------------------------------


def test_command_draws_and_says_what_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(TRACES / STRAGGLER), "--out", str(tmp_path), "--make", "picture", "--step", "5"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Rank 3 is late in 3 of 3 steps" in out and "Step 5: rank 3 reaches a collective" in out
    svg = (tmp_path / "figures" / "timeline.svg").read_text()
    assert "rank 3 is late" in svg and "ms late: compute" in svg and "backward" in svg
    assert (tmp_path / "figures" / "timeline.png").read_bytes()[:4] == b"\x89PNG"
    assert not (tmp_path / "timeline.html").exists()


def test_two_recordings_lie_under_one_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(TRACES / "big_baseline_w4"), str(TRACES / STRAGGLER)]
    assert main([*paths, "--out", str(tmp_path), "--make", "picture", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    svg = (tmp_path / "figures" / "timeline.svg").read_text()
    assert "big_baseline_w4: No rank is late." in svg and f"{STRAGGLER}: Rank 3 is late" in svg


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "99"], "the recording has no step 99, only 4 to 7"),
        (["--ranks", "x"], "is not a list of ranks"),
        (["--make", "poster"], "choose from picture, page, perfetto"),
        (["--ranks", "9"], "the recording has no rank 9"),
        ([str(TRACES / STALL), "--full"], "a Perfetto trace holds only one recording"),
        ([str(TRACES / STALL), str(TRACES / STALL)], "give one recording, or two to compare"),
    ],
)
def test_one_line_for_bad_input(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(TRACES / STRAGGLER), "--out", str(tmp_path / "new"), *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


# --- Perfetto ------------------------------------------------------------------------------------------------------


def written(name: str, folder: Path, *options: str) -> bytes:
    assert main([str(TRACES / name), "--out", str(folder), "--make", "perfetto", "--quiet", *options]) == 0
    return gzip.decompress((folder / "timeline.perfetto.json.gz").read_bytes())


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TraceProcessor]:
    with TraceProcessor(written(STRAGGLER, tmp_path_factory.mktemp("perfetto"))) as processor:
        yield processor


_OF_THREAD = (
    "from slice s join thread_track tt on s.track_id = tt.id join thread t using (utid) join process p using (upid)"
)


def healthy(processor: TraceProcessor) -> None:
    assert processor.errors == []
    assert processor.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []
    assert processor.query("select count(*) from slice where dur < 0") == [(0,)]


def test_perfetto_slices_sum_to_the_summary(loaded: TraceProcessor, analysis: Analysis) -> None:
    healthy(loaded)
    names = [("critical path",), *((f"rank {rank}",) for rank in range(4))]
    assert loaded.query("select distinct name from process where name is not null order by name") == names
    ((path,),) = loaded.query(f"select sum(s.dur) {_OF_THREAD} where p.name = 'critical path'")
    graph = build_graph(analysis)
    assert path == pytest.approx(graph.step_ns(graph.time) * len(graph.steps), abs=1)
    rows = loaded.query(
        f"select p.name, s.name, sum(s.dur) {_OF_THREAD} where t.name = 'where time goes' group by 1, 2"
    )
    sums = {(rank, part): ns for rank, part, ns in rows}
    steps = len(summarise(analysis)["steps"])
    for row in summarise(analysis)["per_rank"]:
        for part, ms in row["breakdown_ms"].items():
            found = sums.get((f"rank {row['rank']}", part.replace("_", " ")), 0)
            assert found * 1e-6 / steps == pytest.approx(ms, abs=1e-6 + 1e-4 * ms)


def test_perfetto_nests_waits_and_transfers(loaded: TraceProcessor, timeline: Timeline) -> None:
    nested = loaded.query(
        f"select s.name, s.depth, count(*) {_OF_THREAD} where t.name like 'communication%' group by 1, 2 order by 1"
    )
    assert {(name, depth) for name, depth, _ in nested} == {("allreduce", 0), ("transfer", 1), ("wait", 1)}
    parents = loaded.query("select count(*) from slice c join slice p on c.parent_id = p.id where c.name = 'transfer'")
    split = sum(
        int(((view.calls["ready"] > 0) & (view.calls["end"] > view.calls["ready"])).sum()) for view in timeline.views
    )
    assert parents == [(split,)]


def test_perfetto_flows_go_from_the_last_rank_to_those_that_waited(loaded: TraceProcessor, timeline: Timeline) -> None:
    tracks = (
        "join thread_track {0}t on {0}.track_id = {0}t.id join thread {0}h on {0}t.utid = {0}h.utid "
        "join process {0}p on {0}h.upid = {0}p.upid"
    )
    rows = loaded.query(
        "select ap.name, bp.name, a.ts, b.ts, a.name, b.name from flow f join slice a on f.slice_out = a.id "
        f"join slice b on f.slice_in = b.id {tracks.format('a')} {tracks.format('b')}"
    )
    matched = len(np.unique(timeline.views[0].calls["call"][timeline.views[0].calls["call"] >= 0]))
    assert len(rows) == 3 * matched
    assert all(out != into and begin <= end for out, into, begin, end, _, _ in rows)
    assert {row[4:] for row in rows} <= {("allreduce", "transfer"), ("transfer", "transfer")}
    late = [row for row in rows if row[0] == "rank 3"]
    assert len(late) > len(rows) / 2


def test_perfetto_counters_end_at_the_step_s_sums(loaded: TraceProcessor, analysis: Analysis) -> None:
    rows = loaded.query(
        "select p.name, t.name, max(c.value) from counter c join process_counter_track t on c.track_id = t.id "
        "join process p using (upid) group by 1, 2"
    )
    table = analysis.step_table
    for rank in range(4):
        own = table.take(table["rank"] == rank)
        expected = {"wait": own["wait_ns"].max(), "overlap": (own["comm_ns"] - own["exposed_comm_ns"]).max()}
        for name, ns in expected.items():
            found = [value for process, track, value in rows if process == f"rank {rank}" and track.startswith(name)]
            assert found == [pytest.approx(ns * 1e-6, abs=1e-3)]


def test_full_keeps_every_original_event(tmp_path: Path) -> None:
    originals: list[dict[str, Any]] = []
    for path in sorted((TRACES / "two_groups_w2").glob("rank*.json.gz")):
        originals += json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    spans = sum(event["ph"] == "X" for event in originals)
    with TraceProcessor(written("two_groups_w2", tmp_path, "--full")) as processor:
        healthy(processor)
        (count,) = processor.query(f"select count(*) {_OF_THREAD} where t.name like 'original%' and s.dur >= 0")[0]
        instants = sum(event["ph"] == "i" for event in originals)
        assert spans <= count <= spans + instants
        assert processor.query("select count(distinct upid) from process where name like 'rank %'") == [(2,)]


@pytest.mark.parametrize("name", [STALL, "cuda_graphs_w2", "fsdp2_w2"])
def test_other_traces_load_without_a_dropped_slice(name: str, tmp_path: Path) -> None:
    with TraceProcessor(written(name, tmp_path)) as processor:
        healthy(processor)


@pytest.mark.parametrize("took_us", [0.02, 0.001, 40])
def test_a_window_of_nanoseconds_is_drawn(took_us: float, tmp_path: Path) -> None:
    """At today's nanoseconds since 1970 a float64 is exact to 256 ns only: edges of pixels must not come from it."""
    args = {"device": 0, "stream": 1, "correlation": 1}
    record = {"ph": "X", "cat": "kernel", "name": "Kernel", "pid": 0, "tid": 1, "ts": 88511388202.785, "dur": took_us}
    trace = {"baseTimeNanoseconds": 1_775_078_550_000_000_000, "traceEvents": [record | {"args": args}]}
    (tmp_path / "rank0.json").write_text(json.dumps(trace))
    assert main([str(tmp_path / "rank0.json"), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "figures" / "timeline.png").stat().st_size > 1000
