"""The work per rank: the cache is never trusted too far, processes change nothing, one rank's end is its own."""

import gzip
import json
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest

from rankscope.analysis import AnalysisError, Options, load, summarise
from rankscope.analysis.commands.analyze import main
from rankscope.analysis.rank import pool, store, workers
from rankscope.analysis.rank.rank_data import RankData
from rankscope.analysis.read.kineto import reader as kineto

TRACES = Path(__file__).parents[2] / "data" / "traces"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    copytree(TRACES / "comm_bound_w4", tmp_path / "traces", ignore=ignore_patterns("truth.json"))
    return tmp_path / "traces"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files that were really read."""
    read, found = kineto.read, []

    def count(path: Path, *args: Any, **more: Any) -> Any:
        found.append(path.name)
        return read(path, *args, **more)

    monkeypatch.setattr(kineto, "read", count)
    yield found


def summary(*paths: Path, **options: Any) -> dict[str, Any]:
    return summarise(load(*paths, options=Options(**options)))


def entries(cache: Path) -> list[Path]:
    """Return the files of ranks, without those of their large tables."""
    return sorted(path for path in (cache / "rankscope" / "ranks").iterdir() if not path.suffix)


def test_the_second_time_nothing_is_read(traces: Path, cache: Path, reads: list[str]) -> None:
    before = sorted(path.name for path in traces.iterdir())
    first = summary(traces)
    assert len(reads) == 4 and len(entries(cache)) == 4
    again = load(traces, options=Options())
    assert summarise(again) == first and len(reads) == 4
    fresh = load(traces, options=Options(cache=False))
    assert len(reads) == 8
    columns = ["rank", "name", "start_ns", "end_ns", "role", "kind", "step", "launch_ns", "bytes"]
    kept, made = (item.kernels()[columns].astype({"name": str, "kind": str, "role": str}) for item in (again, fresh))
    assert kept.equals(made)
    assert sorted(path.name for path in traces.iterdir()) == before


def test_a_changed_file_is_read_again(traces: Path, cache: Path, reads: list[str]) -> None:
    summary(traces)
    os.utime(traces / "rank2.json.gz", ns=(1, 1))
    summary(traces)
    assert reads[4:] == ["rank2.json.gz"]


@pytest.mark.parametrize("damage", [b"", b"junk", None])
def test_a_broken_entry_is_made_again(traces: Path, cache: Path, reads: list[str], damage: bytes | None) -> None:
    first = summary(traces)
    for entry in entries(cache):
        kept = entry.read_bytes()
        entry.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]) if damage is None else damage)
    assert summary(traces) == first and len(reads) == 8
    assert summary(traces) == first and len(reads) == 8


@pytest.mark.parametrize("instead", ["a folder", "a link"])
def test_what_is_no_entry_is_replaced(instead: str, traces: Path, cache: Path, reads: list[str]) -> None:
    load(traces)
    for entry in entries(cache):
        entry.rename(cache / entry.name)
        if instead == "a folder":
            (entry / "no entry").mkdir(parents=True)
        else:
            entry.symlink_to("nowhere")
    reads.clear()
    load(traces)
    load(traces)
    assert len(reads) == 4 and all(entry.is_file() and not entry.is_symlink() for entry in entries(cache))


def test_an_interrupted_command_leaves_no_half_entry(
    traces: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(data: RankData) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "pack", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load(traces)
    assert not list((cache / "rankscope" / "ranks").glob(".*")) and entries(cache) == []


def test_a_broken_table_is_made_again(traces: Path, cache: Path) -> None:
    expected = load(traces, options=Options()).kernels()
    for entry in entries(cache):
        entry.with_name(f"{entry.name}.kernels.z").write_bytes(b"junk")
    found = load(traces, options=Options()).kernels()
    assert found["start_ns"].equals(expected["start_ns"]) and list(found["name"]) == list(expected["name"])


def test_a_cache_that_cannot_be_written_stops_nothing(traces: Path, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert summary(traces)["status"] == "ok"


def test_without_cache_nothing_is_kept(traces: Path, cache: Path) -> None:
    assert main([str(traces), "--no-cache", "--quiet"]) == 0
    assert not (cache / "rankscope" / "ranks").exists()


@pytest.mark.parametrize("processes", [False, True])
def test_any_executor_gives_the_same(traces: Path, processes: bool) -> None:
    here = load(traces, options=Options(cache=False, fast=False))
    with ProcessPoolExecutor(2, get_context("spawn")) if processes else ThreadPoolExecutor(2) as executor:
        there = load(traces, options=Options(cache=False, fast=False, executor=executor))
    assert summarise(there) == summarise(here)
    assert there.kernels()["start_ns"].equals(here.kernels()["start_ns"])


def test_a_pool_of_our_own_gives_the_same(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = summary(traces, cache=False)
    monkeypatch.setattr(workers, "_POOL_FROM", 0)
    monkeypatch.setattr(workers, "_workers", lambda _: 2)
    assert summary(traces, cache=False) == here


def test_what_has_gone_from_the_cache_is_read_again(
    traces: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    expected = summary(traces, cache=False)
    monkeypatch.setattr(workers, "_POOL_FROM", 0)
    monkeypatch.setattr(workers, "_workers", lambda _: 2)
    run = pool.run

    def run_and_lose(*arguments: Any, **more: Any) -> Any:
        found = run(*arguments, **more)
        assert all(isinstance(each, str) for each in found.values())  # the processes gave only the entries' paths
        entries(cache)[0].unlink()
        return found

    monkeypatch.setattr(pool, "run", run_and_lose)
    reads.clear()
    assert summary(traces) == expected
    assert len(reads) == 1  # here; the others were read by processes of their own


def test_the_tables_of_a_rank_are_read_again_together(
    traces: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    monkeypatch.setattr(workers, "_WITH_TABLES", 0)
    summary(traces)
    reads.clear()
    for data in load(traces, options=Options()).ranks:
        assert len(data.kernels["start"]) and len(data.host["start"]) and len(data.launches["start"])
    assert sorted(reads) == [f"rank{rank}.json.gz" for rank in range(4)]


def test_tables_are_those_of_the_file_as_it_is_now(traces: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_WITH_TABLES", 0)
    path = traces / "rank0.json.gz"
    name = load(traces, options=Options()).ranks[0].kernels.words["name"][0]
    for change in ("first", "second"):
        text = gzip.decompress(path.read_bytes())
        path.write_bytes(gzip.compress(text.replace(name.encode(), change.encode()), 1))
        name = pickle.loads(pickle.dumps(load(traces, options=Options()).ranks[0])).kernels.words["name"][0]
        assert name == change


@pytest.mark.parametrize("changed", [[], [0], [2], [0, 1, 2, 3]])
def test_what_is_kept_needs_no_pool(
    changed: list[int], traces: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    first = summary(traces)
    for rank in changed:
        os.utime(traces / f"rank{rank}.json.gz", ns=(1, 1))
    monkeypatch.setattr(workers, "_POOL_FROM", 0)
    monkeypatch.setattr(workers, "_workers", lambda _: 2)
    given: list[workers.Job] = []

    class Pool(ThreadPoolExecutor):  # of threads, so that `reads` sees what its workers read
        def submit(self, work: Any, each: Any, jobs: Any, /) -> Any:  # type: ignore[override]
            given.extend(jobs)
            return super().submit(work, each, jobs)

    monkeypatch.setattr(pool, "processes", Pool)
    assert summary(traces) == first
    assert sorted(reads[4:]) == [f"rank{rank}.json.gz" for rank in changed]
    assert len(given) == (4 if 0 in changed else len(changed))  # without the first one nothing is looked up here


class _Dying(Executor):
    """Runs jobs here; the process of rank 2 dies."""

    def submit(self, run: Any, each: Any, jobs: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        if any("rank2" in job.sources[0].label for job in jobs):
            future.set_exception(BrokenProcessPool())
        else:
            future.set_result(run(each, jobs))
        return future


def test_a_killed_reader_costs_its_own_rank_only(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "processes", lambda *_, **__: _Dying())
    found = summary(traces, cache=False, executor=_Dying())
    assert found["ranks"] == [0, 1, 3] and found["missing_ranks"] == [2] and found["status"] == "partial"
    assert ("reader_killed", 2) in [(notice["kind"], notice["rank"]) for notice in found["warnings"]]


def test_a_subset_of_ranks_and_steps(traces: Path, reads: list[str]) -> None:
    whole, part = load(traces, options=Options(cache=False)), [1, 3]
    reads.clear()
    only = load(traces, options=Options(cache=False, only_ranks=frozenset(part), only_steps=(6, None)))
    assert sorted(reads) == ["rank1.json.gz", "rank3.json.gz"]
    found = summarise(only)
    assert found["ranks"] == part and found["steps"] == [6, 7] and found["status"] == "ok"
    assert found["world_size"] == 4 and found["missing_ranks"] == []
    assert [notice["kind"] for notice in found["warnings"]][:2] == ["ranks_left_out", "steps_left_out"]
    assert "left out on request" in found["stragglers"]["reason"]
    assert only.collectives()["wait_ns"].isna().all()
    columns = ["rank", "step", "compute_ns", "comm_ns"]
    steps = whole.steps()[columns]
    expected = steps[steps["rank"].isin(part)].reset_index(drop=True)
    assert only.steps()[columns].reset_index(drop=True).equals(expected)


def test_ranks_that_are_not_there(traces: Path) -> None:
    with pytest.raises(AnalysisError, match="no file is a trace of rank 9"):
        load(traces, options=Options(only_ranks=frozenset([9])))


@pytest.mark.parametrize("arguments", [["--only-ranks", "a"], ["--only-steps", "5"], ["--only-steps", ":"]])
def test_unreadable_options(traces: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(traces), *arguments]) == 2
    assert "such as" in capsys.readouterr().err


def test_lists_of_ranks(traces: Path, tmp_path: Path) -> None:
    target = tmp_path / "summary.json"
    assert main([str(traces), "--only-ranks", "0,2-3", "--json", str(target), "--quiet"]) == 0
    assert json.loads(target.read_text())["ranks"] == [0, 2, 3]


@pytest.mark.parametrize("content", [b"junk", b'{"config": 1}', b"\x1f\x8b junk"])
def test_a_file_with_a_rank_s_name_that_is_no_trace_is_named_if_the_rank_has_no_other(
    content: bytes, traces: Path, cache: Path
) -> None:
    (traces / "rank2_config.json").write_bytes(b"{}")  # rank 2 has a trace too
    (traces / "rank1.json.gz").write_bytes(content)
    files = [item["message"].split(":")[0] for item in summary(traces)["warnings"] if "rank" in item["message"]]
    assert files == ["rank1.json.gz", "rank 1 of 4 has no trace; waits, transfers and the verdict need every rank"]
