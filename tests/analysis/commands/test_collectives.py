"""`rankscope collectives` on files whose late rank, transfers and waits follow from how they were made."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.analysis.commands import analyze
from rankscope.analysis.commands.collectives import main
from rankscope.analysis.read.inspector import reader
from tests.analysis.inspector_files import durations, line, write

RANKS, CALLS, TRANSFER_US = 4, 40, 500
Lines = dict[int, list[dict[str, Any]]]


def healthy_or_late(late_us: float, *, rank: int = 2, transfer_us: float = TRANSFER_US, **more: Any) -> Lines:
    """Return a job of one communicator. Ranks come in turn up to 20 us late, and `rank` by `late_us` in every call."""
    lines: Lines = {own: [] for own in range(RANKS)}
    for number in range(CALLS):
        arrivals = [20.0 * ((number + own) % RANKS == 0) + late_us * (own == rank) for own in range(RANKS)]
        for own, us in enumerate(durations(arrivals, transfer_us)):
            lines[own].append(line(own, number, us, of=RANKS, **more))
    return lines


def answer(folder: Path, status: int) -> dict[str, Any]:
    assert main([str(folder), "--json", str(folder / "found.json"), "--quiet"]) == status
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def kinds(found: dict[str, Any]) -> set[str]:
    return {warning["kind"] for warning in found["warnings"]}


def test_the_late_rank_its_lateness_and_the_bandwidth_of_the_transfer(tmp_path: Path) -> None:
    found = answer(write(tmp_path, healthy_or_late(3000)), 0)
    [group], [row] = found["groups"], found["collectives"]
    assert (group["verdict"], group["rank"], group["calls_late"]) == ("persistent", 2, CALLS)
    assert group["lateness_ms"] == pytest.approx(3.0, abs=0.021)  # the others are up to 20 us late themselves
    assert row["transfer_ms_p50"] == TRANSFER_US / 1e3
    # S = 1 MiB, and 2 (n - 1) / n of it crosses the bus of each rank (nccl-tests)
    assert row["busbw_GBs"] == pytest.approx((1 << 20) * 1.5 / (TRANSFER_US * 1e3), abs=1e-4)
    assert row["own_busbw_GBs"] < row["busbw_GBs"] / 5  # Inspector's own number holds the wait
    assert "Rank 2 blocks the others" in found["lines"][0]
    assert found["ranks"]["2"] == "node0 102" and not found["warnings"]


def test_nobody_is_named_in_a_healthy_job(tmp_path: Path) -> None:
    found = answer(write(tmp_path, healthy_or_late(0)), 0)
    assert found["groups"][0]["verdict"] == "rotating" and "No single rank is late" in found["lines"][0]
    assert found["collectives"][0]["transfer_ms_p50"] == TRANSFER_US / 1e3


def test_one_microsecond_of_rounding_is_no_lateness(tmp_path: Path) -> None:
    found = answer(write(tmp_path, healthy_or_late(1, transfer_us=20)), 0)
    assert found["groups"][0]["rank"] is None


def test_sizes_of_a_part_and_numbers_per_function(tmp_path: Path) -> None:
    """NCCL counts each function of a communicator on its own, and gives one rank's part of an all-gather."""
    lines: Lines = {own: [] for own in range(RANKS)}
    for own in range(RANKS):
        for number in range(10):
            for kind in ("AllReduce", "AllGather", "ReduceScatter", "All2All", "Broadcast"):
                lines[own].append(line(own, number, 100, of=RANKS, kind=kind, size=1000))
    rows = {row["kind"]: row for row in answer(write(tmp_path, lines), 0)["collectives"]}
    sizes = {"allreduce": 1000, "allgather": 4000, "reducescatter": 4000, "alltoall": 4000, "broadcast": 1000}
    assert {kind: row["bytes"] for kind, row in rows.items()} == sizes
    assert all(row["count"] == 10 for row in rows.values())
    assert rows["alltoall"]["busbw_GBs"] == 4000 * 0.75 / 100_000
    # the root of a broadcast can leave before the others come, so its duration proves no transfer
    assert rows["broadcast"]["transfer_ms_p50"] is None and rows["broadcast"]["transfer_at_most_ms_p50"] == 0.1


def test_two_communicators_have_the_ranks_of_the_job(tmp_path: Path) -> None:
    """Ranks 1 and 3 are ranks 0 and 1 of their own communicator; 3 is late in it, and nobody in the one of all."""
    lines = healthy_or_late(0)
    for number in range(CALLS):
        for own, rank, us in ((0, 1, 2500.0), (1, 3, 500.0)):
            lines[rank].append(line(own, number, us, of=2, group="0xb2", process=rank))
    groups = {group["group"]: group for group in answer(write(tmp_path, lines), 0)["groups"]}
    assert groups["0xa1"]["rank"] is None
    assert (groups["0xb2"]["ranks"], groups["0xb2"]["rank"], groups["0xb2"]["lateness_ms"]) == ([1, 3], 3, 2.0)


def test_a_missing_rank_makes_waits_and_the_verdict_unknown(tmp_path: Path) -> None:
    lines = healthy_or_late(3000)
    del lines[1]
    found = answer(write(tmp_path, lines), 3)
    [group], [row] = found["groups"], found["collectives"]
    assert (group["verdict"], group["rank"], group["absent"], found["missing_ranks"]) == (
        "undetermined",
        None,
        [1],
        [1],
    )
    assert (row["transfer_ms_p50"], row["wait_ms_p50"], row["busbw_GBs"]) == (None, None, None)
    assert row["transfer_at_most_ms_p50"] == TRANSFER_US / 1e3 and "ranks_missing" in kinds(found)


def test_lost_records_take_only_their_collectives(tmp_path: Path) -> None:
    lines = healthy_or_late(3000)
    lines[0] = lines[0][5:]  # the plugin's buffer was full
    lines = {own: [item for item in items if item["coll_perf"]["coll_sn"] != 20] for own, items in lines.items()}
    found = answer(write(tmp_path, lines), 0)
    [group] = found["groups"]
    assert (group["rank"], group["calls_judged"], group["incomplete"], group["unseen"]) == (2, CALLS - 6, 5, 1)
    assert kinds(found) == {"records_missing", "numbers_unseen"} and found["status"] == "ok_with_warnings"


@pytest.mark.parametrize("timing", ["kernel_cpu", None])
def test_times_that_are_not_the_devices_are_said(timing: str | None, tmp_path: Path) -> None:
    found = answer(write(tmp_path, healthy_or_late(3000, timing=timing)), 0)
    assert found["groups"][0]["rank"] == 2 and kinds(found) == {"not_device_times"}
    assert found["collectives"][0]["timing"] == (timing or "not stated")


def test_times_of_enqueueing_give_no_numbers(tmp_path: Path) -> None:
    found = answer(write(tmp_path, healthy_or_late(3000, timing="collective_cpu")), 0)
    assert found["groups"][0]["verdict"] == "undetermined" and not found["collectives"]
    assert kinds(found) == {"calls_unusable"} and found["groups"][0]["unusable"] == CALLS


def test_device_times_count_before_others(tmp_path: Path) -> None:
    """The host's clock saw rank 0 come last in ten calls, which its polling explains as well."""
    lines = healthy_or_late(3000)
    for own in range(RANKS):
        lines[own] += [line(own, CALLS + at, 9000 * (own > 0) + 1, of=RANKS, timing="kernel_cpu") for at in range(10)]
    assert answer(write(tmp_path, lines), 0)["groups"][0]["calls_judged"] == CALLS


def test_damaged_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path, healthy_or_late(3000))
    file = folder / "node0-pid100.log"
    good = file.read_text().splitlines()
    wrong: list[Any] = [
        good[3].replace('"rank": 0', '"rank": "0"'),
        good[4].replace('"coll_exec_time_us": ', '"coll_exec_time_us": -'),
        good[5].replace("1.5", "NaN"),
        good[6].replace('"coll_sn": 6', f'"coll_sn": {10**40}'),
        "[" * 100_000,
        '"' + "x" * (3 << 20) + '"',
        "\0\0\0",
    ]
    file.write_text("\n".join([*good[:3], *wrong, *good[7:]])[:-50])  # and the last line is cut
    found = answer(folder, 3)
    [damaged] = [warning for warning in found["warnings"] if warning["kind"] == "lines_damaged"]
    assert f"{len(wrong) + 1} of {len(wrong) + CALLS - 4} lines" in damaged["message"]
    assert (found["groups"][0]["rank"], found["groups"][0]["incomplete"]) == (2, 5)


def test_repetitions_count_once_and_contradictions_not_at_all(tmp_path: Path) -> None:
    lines = healthy_or_late(3000)
    lines[0].append(lines[0][0])
    lines[1].append(line(1, 7, 1, of=RANKS))
    [group] = answer(write(tmp_path, lines), 0)["groups"]
    assert (group["calls_judged"], group["incomplete"], group["unusable"]) == (CALLS - 1, 1, 1)


def test_compressed_copies_beside_the_files_change_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path, healthy_or_late(3000))
    before = answer(folder, 0)
    for file in list(folder.glob("*.log")):
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    assert answer(folder, 0) == before


def test_files_of_two_jobs_with_the_same_communicator_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = healthy_or_late(0)
    for own in range(RANKS):
        lines[own + 10] = [item | {"metadata": item["metadata"] | {"pid": 110 + own}} for item in lines[own]]
    assert main([str(write(tmp_path, lines))]) == 2
    assert "its files disagree about its ranks" in capsys.readouterr().err


def test_ranks_of_one_process(tmp_path: Path) -> None:
    """nccl-tests gives one process several devices."""
    lines = healthy_or_late(3000, process=0)
    found = answer(write(tmp_path, {0: [item for own in lines.values() for item in own]}), 0)
    assert found["groups"][0]["rank"] == 2 and found["ranks"] == {str(own): "node0 100" for own in range(RANKS)}


def test_without_a_communicator_of_all_the_numbers_are_told(tmp_path: Path) -> None:
    lines: Lines = {process: [] for process in range(4)}
    for process in range(4):
        group, rank = ("0xa1", "0xb2")[process // 2], process % 2
        lines[process] = [line(rank, at, 600 - 300 * rank, of=2, group=group, process=process) for at in range(20)]
    found = answer(write(tmp_path, lines), 0)
    assert {group["group"]: group["rank"] for group in found["groups"]} == {"0xa1": 1, "0xb2": 3}
    assert found["ranks_are"] == "numbered here" and kinds(found) == {"ranks_numbered"}


def test_an_unknown_version_and_sends_are_told(tmp_path: Path) -> None:
    lines = healthy_or_late(3000)
    for item in lines[3]:
        item["metadata"]["inspector_output_format_version"] = "v9.9"
    lines[3].append({key: lines[3][0][key] for key in ("header", "metadata")} | {"p2p_perf": {"p2p": "Send"}})
    found = answer(write(tmp_path, lines), 0)
    assert kinds(found) == {"unknown_format", "point_to_point"} and found["point_to_point"] == 1
    assert found["groups"][0]["rank"] == 2


def test_reading_is_bounded(tmp_path: Path) -> None:
    records = reader.read(write(tmp_path, healthy_or_late(0)), most=RANKS * 10)
    assert np.bincount(records.columns["process"]).tolist() == [10] * RANKS
    assert {notice.kind for notice in records.notices} == {"records_left_out"}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.prom", "nccl_bus_bandwidth_gbs 1", "NCCL_INSPECTOR_PROM_DUMP=0"),
        ("a.txt", "", "has no file of NCCL Inspector"),
        ("worker.log", "epoch 1\n", "has a line of NCCL Inspector"),
        ("a.log", '{"header": {"id": "0x1"}, "coll_perf": {}}\n', "a.log: no line can be read (line 1"),
        ("a.log.gz", "no gzip", "a.log.gz: cannot be read"),
    ],
)
def test_a_folder_without_records_is_one_line(
    name: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_analyze_says_which_command_reads_the_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert analyze.main([str(write(tmp_path, healthy_or_late(0)))]) == 2
    assert "`rankscope collectives` reads them" in capsys.readouterr().err
