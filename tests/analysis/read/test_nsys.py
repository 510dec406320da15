"""Exports of Nsight Systems: real ones of 4 GPUs and of two gloo ranks, and made ones whose numbers are chosen."""

import json
import shutil
import sqlite3
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.analysis import Analysis, AnalysisError, load, summarise
from rankscope.analysis.core.table import UNKNOWN
from rankscope.analysis.options import Options
from rankscope.analysis.read.nsys import reader as nsys
from rankscope.analysis.read.nsys.export import Export

from .nsys_files import BASE, GEMM_NS, STEP_NS, ExportFile, write_job

DATA = Path(__file__).parents[2] / "data"
GPU, GLOO, GLOO_ACTIVE = (DATA / "nsys" / name for name in ("big_baseline_w4", "gloo_w2", "gloo_w2_active"))
MS = 1e6


@cache
def analysed(path: Path) -> Analysis:
    return load(path)


def per_rank(path: Path) -> dict[int, dict[str, Any]]:
    return {row["rank"]: row for row in summarise(analysed(path))["per_rank"]}


# --- the same job under both profilers -----------------------------------------------------------------------


def test_compute_of_a_step_is_what_torch_profiler_says() -> None:
    kineto, exports = per_rank(DATA / "traces" / "big_baseline_w4"), per_rank(GPU)
    for rank in range(4):
        assert exports[rank]["compute_ms"] == pytest.approx(kineto[rank]["compute_ms"], rel=0.05)
        assert exports[rank]["step_ms"] == pytest.approx(kineto[rank]["step_ms"], rel=0.05)


def test_transfer_of_a_call_is_what_torch_profiler_says() -> None:
    """Median call: 9 % apart. The sum of a step differs more: 3.1 to 3.6 ms there, 3.4 to 4.2 ms in these steps."""
    calls = [analysed(path).collectives() for path in (DATA / "traces" / "big_baseline_w4", GPU)]
    kineto, exports = (found[found["matched"] & found["step"].notna()] for found in calls)
    assert len(kineto) == len(exports) == 4 * 4 * 11
    assert exports["transfer_ns"].median() == pytest.approx(kineto["transfer_ns"].median(), rel=0.1)


def test_verdict_and_the_first_step_of_the_capture() -> None:
    analysis = analysed(GPU)
    assert analysis.verdict.verdict == "none"
    assert analysis.steps_judged == [1, 2, 3]  # in step 0 the first all-reduce waits 106 ms
    calls = analysis.collectives()
    waits = calls[calls["step"] == 0].groupby("rank")["wait_ns"].max() / MS
    assert waits[2] == pytest.approx(106, abs=0.5) and waits[0] < 1  # rank 0 was the last to open its range
    assert summarise(analysis)["steps"] == [1, 2, 3]
    summary = summarise(analysis)
    assert (summary["source"], summary["status"]) == ("nsys", "ok")
    assert [row["kind"] for row in summary["collectives"]] == ["allreduce"]
    assert summary["collectives"][0]["bytes"] is None  # this export was made without payloads


# --- two gloo ranks on a CPU ---------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [GLOO, GLOO_ACTIVE], ids=["full", "active"])
@pytest.mark.parametrize("rank", [0, 1])
def test_clock_against_time_taken_in_the_program(folder: Path, rank: int) -> None:
    """`time.time_ns()` was taken just after each step's range was opened: 1 to 8 us, so the README of the sample."""
    trace = nsys.read(folder / f"rank_{rank}.sqlite")
    steps = np.array([word.startswith("ProfilerStep#") for word in trace.host.words["name"]])[trace.host["name"]]
    opened = np.sort(trace.host["start"][steps])
    truth = np.array(json.loads((folder / f"wall_rank_{rank}.json").read_text())["step_start_time_ns"])
    late = (truth[-len(opened) :] - opened) / 1000
    assert len(opened) == (15 if folder == GLOO else 12)
    assert (late >= 0).all() and np.median(late) < 8
    assert trace.rank == rank and trace.world_size == 2


def test_gloo_sample_facts() -> None:
    analysis = analysed(GLOO)
    waits = {data.rank: data.steps.to_pandas().set_index("step")["data_wait"] / MS for data in analysis.ranks}
    assert analysed(GLOO_ACTIVE).steps_analysed == list(range(3, 15))
    assert waits[1].median() == pytest.approx(1.1, abs=0.1) and waits[1].max() == pytest.approx(6.1, abs=0.1)
    assert set(waits[1][waits[1] > 5].index) == {3, 7, 11} and waits[0].max() < 1.5


def test_collectives_that_cannot_be_seen_are_null_not_zero() -> None:
    summary = summarise(analysed(GLOO))
    for row in summary["per_rank"]:
        assert row["comm_ms"] is None and row["breakdown_ms"]["exposed_wait"] is None and row["overlap_ratio"] is None
    assert summary["stragglers"]["verdict"] == "undetermined"
    assert any(warning["kind"] == "no_cuda" for warning in summary["warnings"])


# --- made exports --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", ["3.0.0", "3.7.2", "3.28.1"])
def test_closed_form(tmp_path: Path, schema: str) -> None:
    for rank, (begin, shift) in enumerate([(400_000, 0), (650_000, 250_000)]):
        file = ExportFile(tmp_path / f"rank{rank}.sqlite", base=BASE + shift, schema=schema)
        file.add_rank(rank, comm_start=begin - shift, comm_end=800_000 - shift)
        file.close()
    summary = summarise(load(tmp_path))
    rows = summary["per_rank"]
    assert summary["steps"] == [0, 1, 2, 3]
    assert [row["compute_ms"] for row in rows] == [GEMM_NS / MS] * 2
    assert [row["copy_ms"] for row in rows] == [0.01] * 2
    # one session began 0.25 ms later than the other: on the common clock rank 1 comes 0.25 ms later, both end together
    assert [row["wait_ms"] for row in rows] == [0.25, 0.0]
    assert [row["transfer_ms"] for row in rows] == [0.15, 0.15]
    assert summary["alignment"]["offset_us"]["1"] == 0


def test_time_normalised_export(tmp_path: Path) -> None:
    for normalised in (False, True):
        file = ExportFile(tmp_path / f"{normalised}.sqlite", normalised=normalised)
        file.add_rank()
        file.close()
    plain, shifted = (nsys.read(tmp_path / f"{name}.sqlite") for name in (False, True))
    assert plain.device["start"].tolist() == shifted.device["start"].tolist()
    assert plain.host["start"].min() == BASE


def test_payload_gives_communicator_and_size(tmp_path: Path) -> None:
    write_job(tmp_path, payload=4_000_000)
    row = summarise(load(tmp_path))["collectives"][0]
    assert (row["group"], row["bytes"], row["group_size"]) == ("00c0ffee", 4_000_000, 2)
    assert row["busbw_GBs"] == pytest.approx(4_000_000 / 300_000 * 1, rel=1e-3)  # 2 (n - 1) / n = 1


def test_all_gather_counts_the_whole_output(tmp_path: Path) -> None:
    kernel = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
    write_job(tmp_path, payload=1000, function="ncclAllGather", kernel=kernel)
    row = summarise(load(tmp_path))["collectives"][0]
    assert (row["kind"], row["bytes"]) == ("allgather", 2000)


@pytest.mark.parametrize(
    ("name", "pattern", "steps"),
    [
        ("step_{}", None, [0, 1, 2, 3]),
        ("ProfilerStep#{}", None, [0, 1, 2, 3]),
        ("Iteration 1{}", None, [10, 11, 12, 13]),
        ("step", None, [0, 1, 2, 3]),
        ("my step no {}", r"my step no (\d+)", [0, 1, 2, 3]),
        ("whatever", "whatever", [0, 1, 2, 3]),
        ("unknown {}", None, []),
    ],
)
def test_steps_by_name(tmp_path: Path, name: str, pattern: str | None, steps: list[int]) -> None:
    write_job(tmp_path, step_name=name)
    analysis = load(tmp_path, options=Options(steps_from=pattern))
    assert analysis.steps_analysed == steps
    assert any(notice.kind == "no_steps" for notice in analysis.notices) == (not steps)


def test_a_pattern_that_names_nothing_says_what_there_is(tmp_path: Path) -> None:
    write_job(tmp_path)
    analysis = load(tmp_path, options=Options(steps_from="epoch"))
    message = next(notice.message for notice in analysis.notices if notice.kind == "no_such_range")
    assert "epoch" in message and "step_0" in message


def test_several_processes_in_one_report(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "job.sqlite")
    file.add_rank(0, comm_start=400_000)
    file.add_rank(1, comm_start=650_000)
    file.close()
    analysis = load(tmp_path / "job.sqlite")
    assert [data.rank for data in analysis.ranks] == [0, 1]
    assert [row["wait_ms"] for row in summarise(analysis)["per_rank"]] == [0.25, 0.0]
    assert any(notice.kind == "rank_from_pid" for notice in analysis.notices)


def test_open_range_and_row_without_end(tmp_path: Path) -> None:
    path = write_job(tmp_path, 1)[0]
    with sqlite3.connect(path) as database:
        database.execute("UPDATE NVTX_EVENTS SET end = NULL WHERE text = 'step_3'")
    trace = nsys.read(path)
    assert (trace.host["duration"] == UNKNOWN).sum() == 1
    assert load(path).steps_analysed == [0, 1, 2]


def test_without_nvtx_the_whole_window_is_measured(tmp_path: Path) -> None:
    write_job(tmp_path, nvtx=False)
    summary = summarise(load(tmp_path))
    assert summary["steps"] == [] and {"no_nvtx", "no_steps"} <= {item["kind"] for item in summary["warnings"]}
    assert summary["totals"][0]["compute_us"] == 4 * GEMM_NS / 1000
    assert summary["totals"][0]["span_us"] == (3 * STEP_NS + 800_000 - 60_000) / 1000


# --- bad input -----------------------------------------------------------------------------------------------


def no_tables(folder: Path) -> None:
    file = ExportFile(folder / "rank0.sqlite")
    file.close()


def launches_only(folder: Path) -> None:
    path = write_job(folder, 1)[0]
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY")


def renamed_column(folder: Path) -> None:
    file = ExportFile(folder / "rank0.sqlite", schema="4.1.0")
    file.add_rank()
    file.drop_column("CUPTI_ACTIVITY_KIND_KERNEL", "correlationId")
    file.close()


def truncated(folder: Path) -> None:
    path = write_job(folder, 1)[0]
    path.write_bytes(path.read_bytes()[:-8192])


def scribbled(folder: Path) -> None:
    path = write_job(folder, 1)[0]
    content = bytearray(path.read_bytes())
    content[4096:-4096] = b"\x5a" * (len(content) - 8192)
    path.write_bytes(content)


def zero_bytes(folder: Path) -> None:
    (folder / "rank0.sqlite").touch()


def other_database(folder: Path) -> None:
    with sqlite3.connect(folder / "rank0.sqlite") as database:
        database.execute("CREATE TABLE t (x INT)")


def text_file(folder: Path) -> None:
    (folder / "rank0.sqlite").write_text("step 1\n" * 100)


def same_twice(folder: Path) -> None:
    shutil.copy(write_job(folder, 1)[0], folder / "rank1.sqlite")


def two_jobs(folder: Path) -> None:
    for rank, base in enumerate([BASE, BASE + 3600 * 10**9]):
        file = ExportFile(folder / f"rank{rank}.sqlite", base=base)
        file.add_rank(rank)
        file.close()


def raw_recording(folder: Path) -> None:
    (folder / "rank0.qdstrm").write_bytes(b"x" * 1000)


BAD = {
    no_tables: "neither CUDA nor NVTX",
    launches_only: "not one GPU record",
    renamed_column: "has no column correlationId (schema 4.1.0)",
    truncated: "is cut off",
    scribbled: "export it again",
    zero_bytes: "is empty",
    other_database: "not an export of Nsight Systems",
    text_file: "is not an SQLite export",
    same_twice: "the same report twice",
    two_jobs: "recorded 3600 s apart, so they belong to two jobs",
    raw_recording: "QdstrmImporter",
}


@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_bad_input_is_one_line(tmp_path: Path, make: Any) -> None:
    make(tmp_path)
    with pytest.raises(AnalysisError) as caught:
        load(tmp_path)
    assert BAD[make] in str(caught.value) and "rank0" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_damaged_report_leaves_the_others(tmp_path: Path) -> None:
    write_job(tmp_path, 3)
    (tmp_path / "rank2.sqlite").write_bytes(b"")
    summary = summarise(load(tmp_path))
    assert summary["status"] == "partial" and summary["ranks"] == [0, 1]


def test_newer_schema_is_read_by_names(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "rank0.sqlite", schema="4.0.0")
    file.add_rank()
    file.close()
    notices = load(tmp_path / "rank0.sqlite").notices
    assert next(notice.message for notice in notices if notice.kind == "newer_schema").count("4.0.0") == 1


def test_the_command_on_bad_input(tmp_path: Path) -> None:
    zero_bytes(tmp_path)
    command = [sys.executable, "-m", "rankscope.conf.cli", "analyze", str(tmp_path), "--json", str(tmp_path / "s.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr
    assert json.loads((tmp_path / "s.json").read_text())["source"] == "nsys"


# --- nsys-strip ----------------------------------------------------------------------------------------------


def test_strip_keeps_the_numbers_and_drops_what_is_private(tmp_path: Path) -> None:
    from rankscope.analysis.commands.nsys_strip import main

    (tmp_path / "in").mkdir()
    files = write_job(tmp_path / "in")
    for path in files:
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)")
            rows = [('API_TOKEN="hunter2"',), ('RANK="0"',), ('WORLD_SIZE="2"',)]
            database.executemany("INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', ?)", rows)
            database.execute("CREATE TABLE PROCESSES (globalPid INT, pid INT, name TEXT)")
            database.execute("INSERT INTO PROCESSES VALUES (1, 1, 'hunter2')")
            database.execute("INSERT INTO StringIds VALUES (900, 'hunter2 --password')")
            database.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_HOST', 'hunter2')")
            database.execute("CREATE TABLE TARGET_INFO_GPU (uuid TEXT, smCount INT)")
            database.execute("INSERT INTO TARGET_INFO_GPU VALUES ('hunter2', 132)")
    assert main([*map(str, files), "--out", str(tmp_path / "out")]) == 0
    copies = sorted((tmp_path / "out").iterdir())
    assert all(b"hunter2" not in copy.read_bytes() for copy in copies)
    assert [nsys.read(copy).world_size for copy in copies] == [2, 2]
    assert [Export(copy, "").sms for copy in copies] == [132, 132]
    assert summarise(load(copies[0]))["per_rank"] == summarise(load(files[0]))["per_rank"]
    assert main([str(files[0]), "--out", str(tmp_path / "out")]) == 2  # never overwrites


def test_kernels_launched_at_the_end_of_a_group(tmp_path: Path) -> None:
    """Between ncclGroupStart and ncclGroupEnd the calls only queue: their kernels are launched after them."""
    for path in write_job(tmp_path, payload=1000):
        with sqlite3.connect(path) as database:
            database.execute("UPDATE NVTX_EVENTS SET start = start - 9000, end = start - 1 WHERE domainId = 1")
    row = summarise(load(tmp_path))["collectives"][0]
    assert (row["kind"], row["bytes"], row["matched"]) == ("allreduce", 1000, 4)


def test_an_identity_that_no_two_ranks_share_makes_no_groups(tmp_path: Path) -> None:
    for rank, path in enumerate(write_job(tmp_path, payload=1000)):
        with sqlite3.connect(path) as database:
            blobs = database.execute("SELECT rowid, binaryData FROM NVTX_EVENTS WHERE binaryData NOT NULL").fetchall()
            for row, blob in blobs:
                changed = blob[:32] + bytes([rank + 1]) + blob[33:]
                database.execute("UPDATE NVTX_EVENTS SET binaryData = ? WHERE rowid = ?", (changed, row))
    row = summarise(load(tmp_path))["collectives"][0]
    assert (row["matched"], row["unmatched"], row["group_size"]) == (4, 0, 2)


def test_payload_as_hexadecimal_text(tmp_path: Path) -> None:
    for path in write_job(tmp_path, payload=1000):
        with sqlite3.connect(path) as database:
            database.execute("UPDATE NVTX_EVENTS SET binaryData = hex(binaryData) WHERE binaryData NOT NULL")
    assert summarise(load(tmp_path))["collectives"][0]["bytes"] == 1000
