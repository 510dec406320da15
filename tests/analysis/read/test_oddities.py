"""Odd inputs beyond the validation cases: each file is built here, its truth stands beside it."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis import AnalysisError, load, summarise
from rankscope.analysis.read.kineto import reader as kineto
from rankscope.analysis.read.kineto.repair import repair
from rankscope.conf.cli import main

from ..made_traces import MadeTrace

CASES = Path(__file__).parents[2] / "data" / "cases"
US = 1000


def document(rank: int, events: list[dict[str, Any]], **metadata: Any) -> dict[str, Any]:
    info = {"backend": "nccl", "rank": rank, "world_size": 2}
    return {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events} | metadata


def kernel(name: str, ts: float, dur: float, stream: int = 7, **args: Any) -> dict[str, Any]:
    where = {"device": 0, "stream": stream}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": ts,
        "dur": dur,
        "args": where | args,
    }


def reduction(ts: float, dur: float, seq: int) -> dict[str, Any]:
    described = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    return kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", ts, dur, 20, Seq=seq, **described)


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    name = f"ProfilerStep#{number}"
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}


def write(folder: Path, *documents: dict[str, Any]) -> Path:
    for rank, content in enumerate(documents):
        (folder / f"rank{rank}.json").write_text(json.dumps(content))
    return folder


def test_epoch_microseconds_with_decimals_are_exact(tmp_path: Path) -> None:
    """A double holds 1.7e15 us to 0.25 us only; torch 2.3 wrote such times. The text is exact."""
    text = json.dumps(document(0, [kernel("k", 1.5, 2.0), kernel("k", 2.5, 1.0)]))
    text = text.replace('"ts": 1.5', '"ts": 1712345678901234.567').replace('"ts": 2.5', '"ts": 1712345678901240.001')
    (tmp_path / "rank0.json").write_text(text)
    starts = kineto.read(tmp_path / "rank0.json").device["start"].tolist()
    assert starts == [1712345678901234567, 1712345678901240001]


@pytest.mark.parametrize("pack", [gzip.compress, lambda b: gzip.compress(b[:300]) + gzip.compress(b[300:])])
def test_packed_files_read_like_plain_ones(pack: Any, tmp_path: Path) -> None:
    plain = (CASES / "D01-fast-rank-long-allreduce" / "rank0.json").read_bytes()
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + plain)  # with a byte order mark
    (tmp_path / "a.json.gz").write_bytes(pack(plain))
    a, b = (kineto.read(tmp_path / name) for name in ("a.json", "a.json.gz"))
    assert a.rank == b.rank == 0 and a.device["start"].tolist() == b.device["start"].tolist() and b.complete


def test_profiler_cycles_of_one_rank_are_joined(tmp_path: Path) -> None:
    """Two files of rank 0 with different steps are two cycles, not two claims; the pause between belongs to no step."""
    for rank in (0, 1):
        for cycle, first in enumerate((3, 13)):
            at = 1e6 * cycle
            late = 100.0 * rank
            events = []
            for index in range(3):
                begin = at + 1000 * index
                compute, end = 200 + late, begin + 500
                events += [step(first + index, begin, 1000), kernel("gemm", begin, compute)]
                events += [reduction(begin + compute, end - begin - compute, first + index)]
            (tmp_path / f"rank{rank}_{cycle}.json").write_text(json.dumps(document(rank, events)))
    analysis = load(tmp_path)
    assert analysis.steps_analysed == [3, 4, 5, 13, 14, 15]
    assert analysis.steps_judged == [4, 5, 14, 15]  # the first step of each window is not judged
    assert analysis.steps()["step_ns"].max() <= 1000 * US
    assert (analysis.verdict.verdict, analysis.verdict.rank, analysis.verdict.cause) == ("persistent", 1, "compute")


def test_a_rank_that_only_joins_is_left_out(tmp_path: Path) -> None:
    """DDP's join: rank 1 has run out of data in step 4 and takes part in the all-reduce without computing."""
    documents = []
    for rank in (0, 1):
        events = [step(3, 0, 1000), kernel("gemm", 0, 300), reduction(300, 100, 1), step(4, 1000, 1000)]
        events += [reduction(1300, 100, 2)] if rank else [kernel("gemm", 1000, 300), reduction(1300, 100, 2)]
        documents.append(document(rank, events))
    summary = summarise(load(write(tmp_path, *documents)))
    assert summary["steps"] == [3]
    assert [w["ranks"] for w in summary["warnings"] if w["kind"] == "partial_step"] == [[1]]


def test_files_of_two_jobs_are_named(tmp_path: Path) -> None:
    events = [step(3, 0, 1000), kernel("gemm", 0, 300), reduction(300, 100, 1)]
    other = document(1, events) | {"distributedInfo": {"rank": 1, "world_size": 4}}
    summary = summarise(load(write(tmp_path, document(0, events), other)))
    assert summary["status"] == "partial"
    assert "rank0.json says 2, rank1.json says 4" in next(
        w["message"] for w in summary["warnings"] if w["kind"] == "mixed_jobs"
    )


def test_ranks_that_disagree_on_a_call_are_not_paired(tmp_path: Path) -> None:
    """Without Seq: rank 1 lost one call of the step. The others still pair; the lost one's partner is counted."""
    sizes = {0: [10, 20, 30], 1: [10, 30]}
    documents = []
    for rank, present in sizes.items():
        events = [step(3, 0, 1000), kernel("gemm", 0, 50)]
        for number, size in enumerate((10, 20, 30)):
            if size in present:
                call = reduction(100 + 100 * number, 50, 0)
                call["args"] |= {"In msg nelems": size, "dtype": "Float"}
                del call["args"]["Seq"]
                events.append(call)
        documents.append(document(rank, events))
    calls = load(write(tmp_path, *documents)).collectives()
    assert calls[calls["matched"]].groupby("call")["bytes"].unique().map(list).tolist() == [[40], [120]]
    assert calls[~calls["matched"]]["bytes"].tolist() == [80]
    assert calls[~calls["matched"]]["wait_ns"].isna().all()


def test_two_files_without_any_rank_are_refused(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps({"traceEvents": [kernel("k", 0, 1)]}))
    with pytest.raises(AnalysisError, match=r"name the files rank0\.json"):
        load(tmp_path)


def test_a_hundred_nested_brackets_are_no_trouble(tmp_path: Path) -> None:
    deep = kernel("k", 0, 1)
    deep["args"]["x"] = json.loads("[" * 200 + "]" * 200)
    trace = document(0, [deep, {"ph": "X", "cat": ["odd"], "name": 7, "ts": None}, kernel("k", 1, 1)])
    assert len(kineto.read(write(tmp_path, trace) / "rank0.json").device) == 2


def test_half_a_pair_of_surrogates_is_an_unknown_letter_and_costs_no_time(tmp_path: Path) -> None:
    """One event among 20,000 on one line: such a record is mended, and the others are not copied for each event."""
    text, counted = repair(rb'{"a":"\ud800 \ud83d\ude00 \\ud800"}')
    assert text == rb'{"a":"\ufffd \ud83d\ude00 \\ud800"}' and counted == {"invalid_escape_repaired": 1}
    kernels = [
        {"ph": "X", "cat": "kernel", "name": f"k{number % 7}", "pid": 0, "tid": 7, "ts": 10 * number, "dur": 5}
        for number in range(20_000)
    ]
    kernels[5]["name"] = "\ud800"
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": kernels}))
    (totals,) = summarise(load(tmp_path / "rank0.json"))["totals"]
    assert totals["compute_us"] == 20_000 * 5


def test_a_folder_whose_files_are_no_traces_is_refused_by_a_file_s_name(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("nope")
    with pytest.raises(AnalysisError, match=r"settings\.json: not a trace, nor is any other file"):
        load(tmp_path)
    for name in ("rank0.json", "rank1.json"):
        (tmp_path / name).write_text("nope")
    with pytest.raises(AnalysisError, match=r"rank0\.json: no traceEvents in it.* \(and 1 more\)"):
        load(tmp_path)


def test_events_inside_another_list_cost_only_themselves(tmp_path: Path) -> None:
    other = document(0, [step(1, 0, 100), kernel("k", 10, 20)])
    nested = document(1, [[step(1, 0, 100), kernel("k", 10, 20)], kernel("k", 40, 20)])  # type: ignore[list-item]
    found = summarise(load(write(tmp_path, other, nested)))
    assert found["status"] == "partial" and found["missing_ranks"] == [1]


def test_a_rank_without_steps_beside_one_with_steps(tmp_path: Path) -> None:
    """Its activity is that of its whole window, which is no step of the other."""
    stepless = document(1, [kernel("k", 10, 20), kernel("k", 120, 20)])
    found = summarise(load(write(tmp_path, document(0, [step(0, 0, 100), kernel("k", 10, 20)]), stepless)))
    assert [row["rank"] for row in found["per_rank"]] == [0]


def test_a_step_without_length_beside_work(tmp_path: Path) -> None:
    """Where a kernel and hidden communication end: no time of it is idle or hidden."""
    trace = MadeTrace()
    trace.step(1, 30, 0)
    trace.kernel(10, 20)
    trace.kernel(20, 10, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=20)
    trace.write(tmp_path / "rank0.json")
    assert main(["analyze", str(tmp_path), "--no-cache", "--out", str(tmp_path / "out")]) == 0
    assert main(["timeline", str(tmp_path), "--no-cache", "--out", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize("time", [2**62 / US, -(2**61) / US, "9" * 5000, 1e300])
def test_a_time_that_cannot_be_is_unknown(time: Any, tmp_path: Path) -> None:
    events = [step(1, 0, 100), step(2, time, 100), kernel("k", 10, 20), kernel("k", time, time)]
    analysis = load(write(tmp_path, document(0, events), document(1, [step(1, 0, 100), kernel("k", 10, 20)])))
    assert analysis.steps()["step"].unique().tolist() == [1]


def test_long_names_stay_different(tmp_path: Path) -> None:
    names = ["x" * 50_000 + end for end in "ab"]
    (tmp_path / "rank0.json").write_text(json.dumps(document(0, [kernel(name, 0, 1) for name in names])))
    words = [word for word in kineto.read(tmp_path / "rank0.json").device.texts("name") if word]
    assert len(set(words)) == 2 and all(len(word) < 5000 and "50001 characters" in word for word in words)


@pytest.mark.parametrize("fast", [False, True])
def test_names_that_differ_only_in_the_middle(fast: bool, tmp_path: Path) -> None:
    """The scanner's quick hash does not see the middle: then it must look at all of it."""
    names = [f"enumerate(DataLoader)#{number:06d}.__next__" for number in range(20_000)]
    (tmp_path / "rank0.json").write_text(json.dumps(document(0, [kernel(name, 0, 1) for name in names])))
    assert kineto.read(tmp_path / "rank0.json", fast=fast).device.texts("name") == names


def test_a_kernel_without_name_on_a_stream_of_communication(tmp_path: Path) -> None:
    nameless = [kernel("", ts, 20, 20) for ts in (200, 300)]
    for event in nameless:
        del event["name"]
    found = load(write(tmp_path, document(0, [step(1, 0, 500), reduction(10, 100, 1), *nameless])))
    assert [data.rank for data in found.ranks] == [0]


def test_a_huge_rank_json_is_as_if_missing(tmp_path: Path) -> None:
    run = shutil.copytree(CASES.parent / "runs" / "resnet_w2", tmp_path / "run")
    info = run / "passes" / "torch" / "ranks" / "1" / "rank.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"notes": ["x"] * 400_000}))
    found = load(run).notices
    assert [notice.rank for notice in found if notice.kind == "rank_info"] == [1] and len(found) < 10


def test_begin_and_end_of_ranges_by_name_and_without(tmp_path: Path) -> None:
    def mark(phase: str, ts: float, name: str | None) -> dict[str, Any]:
        named = {} if name is None else {"name": name}
        return {"ph": phase, "cat": "cpu_op", "pid": 1, "tid": 1, "ts": ts} | named

    events = [mark("B", 0, "a"), mark("B", 1, "b"), mark("B", 2, "a"), mark("E", 3, "b"), mark("E", 4, None)]
    events += [mark("E", 6, "a"), mark("E", 7, "a"), mark("E", 8, None)]
    (tmp_path / "rank0.json").write_text(json.dumps(document(0, [*events, kernel("k", 0, 1)])))
    host = kineto.read(tmp_path / "rank0.json").host
    found = zip(host.texts("name"), host["start"].tolist(), host["duration"].tolist(), strict=True)
    assert sorted(found) == [("a", 0, 6 * US), ("a", 2 * US, 2 * US), ("b", 1 * US, 2 * US)]
