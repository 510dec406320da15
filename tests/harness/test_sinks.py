"""The places that a watched run is written to: its files, and the formats that the options ask for."""

import dataclasses
import json
import logging
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from rankscope.conf.monitor_dir import MonitorDir
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.watch.logs import EventLog, RankLog, StepLog
from rankscope.harness.watch.options import Options
from rankscope.harness.watch.parts import PARTS, TIMES
from rankscope.harness.watch.sinks.formats import open_sinks
from rankscope.harness.watch.sinks.guarded import Background, Guarded
from rankscope.harness.watch.sinks.rank_metrics import by_rank, late_rank, of_rank_0

CONTEXT = RankContext(
    rank=0,
    local_rank=0,
    world_size=2,
    local_world_size=2,
    device=torch.device("cpu"),
    backend=None,
    host="here",
    boot_id=None,
)


def options(tmp_path: Path, **changes: Any) -> Options:
    settings = Options(
        parent=tmp_path,
        every=2,
        window=10,
        warmup=0,
        alpha=1e-6,
        least_change=0.05,
        trace_steps=0,
        max_windows=0,
        part_steps=3,
        tensorboard=False,
        prometheus_port=None,
        wandb=False,
        mlflow=False,
        steps_from="recorder",
        on_event=None,
    )
    return dataclasses.replace(settings, **changes)


def row(step: int) -> Any:
    times = dict.fromkeys([*TIMES.values(), "launch_ns"], 1000)
    return {"step": step, "start_ns": step, "host_ns": 5_000_000, "device_ns": None, **times} | {
        "memory_peak_bytes": None,
        "first_of_epoch": False,
        "host_ahead": None,
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_files(rank: int, tmp_path: Path) -> None:
    folder = MonitorDir(tmp_path)
    sinks = open_sinks(options(tmp_path), folder, dataclasses.replace(CONTEXT, rank=rank))
    steps, events = StepLog(options(tmp_path), sinks), EventLog(sinks, logs=False)
    for step in range(5):
        steps.count(step, 4)
        steps.write([row(step)], lambda step: step == 1)
    events.write({"event": "window", "step": 3}, "a trace")
    for sink in sinks:
        sink.close()
    parts = [pq.read_table(path) for path in folder.rank(rank).parts()]
    assert [len(part) for part in parts] == [3, 2] and parts[0]["traced"].to_pylist() == [False, True, False]
    stats = [json.loads(line) for line in folder.rank(rank).stats.read_text().splitlines()]
    assert [line["step"] for line in stats] == [1, 3] and stats[0]["step_ms_p50"] == 5
    assert folder.events.exists() == (rank == 0)  # the ranks come to the same events
    assert rank or json.loads(folder.events.read_text())["event"] == "window"


def test_a_format_that_cannot_be_opened_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as used, caplog.at_level(logging.WARNING):
        used.bind(("", 0))
        used.listen()
        settings = options(tmp_path, prometheus_port=used.getsockname()[1])
        (files,) = open_sinks(settings, MonitorDir(tmp_path), CONTEXT)
        files.close()
    assert len(caplog.records) == 1


class Kept:
    """A sink that keeps what it is given, waits if it is told to, and fails at an event."""

    def __init__(self, go: threading.Event | None = None) -> None:
        self.got: list[tuple[Any, ...]] = []
        self._go = go

    def steps(self, lines: list[dict[str, Any]]) -> None:
        self.got.append(("steps", len(lines)))

    def stats(self, stats: dict[str, Any]) -> None:
        if self._go is not None:
            self._go.wait(60)
        self.got.append(("stats", stats["step"]))

    def ranks(self, step: int, stats: list[dict[str, float]]) -> None:
        self.got.append(("ranks", step))

    def event(self, event: dict[str, Any], text: str) -> None:
        raise OSError("the server is gone\nand more")

    def close(self) -> None:
        self.got.append(("close",))


@pytest.mark.parametrize("background", [False, True])
def test_a_sink_that_fails_is_dropped(background: bool, caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()
    sink = Background("it", lambda: kept) if background else Guarded("it", kept)
    with caplog.at_level(logging.WARNING):
        sink.stats({"step": 1})
        sink.event({"event": "window"}, "")
        while background and not caplog.records:
            time.sleep(0.01)
        sink.stats({"step": 2})
        sink.close()
    assert kept.got == [("stats", 1)]
    assert [record.getMessage() for record in caplog.records] == [
        "rankscope: it gets no more numbers: OSError: the server is gone"
    ]


@pytest.mark.parametrize(
    ("opens", "calls", "told"),
    [
        (False, ["stats", "event"], "ConnectionError: no server"),
        (True, ["event", "stats"], "OSError: the server is gone"),  # it refuses the first numbers
        (True, ["stats", "event"], None),  # its library may have ended the run with the process
    ],
)
def test_a_failure_after_the_end_is_told_if_every_number_is_lost(
    opens: bool, calls: list[str], told: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A short training ends before its sink is open."""
    go = threading.Event()

    def make() -> Kept:
        go.wait(60)
        if not opens:
            raise ConnectionError("no server")
        return Kept()

    sink = Background("it", make)
    for call in calls:
        sink.stats({"step": 1}) if call == "stats" else sink.event({"event": "window"}, "")
    threading.Timer(0.1, go.set).start()
    sink.close()
    expected = [] if told is None else [f"rankscope: it gets no more numbers: {told}"]
    assert [record.getMessage() for record in caplog.records] == expected


def test_a_sink_that_does_not_answer_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()
    kept = Kept(go)
    sink = Background("it", lambda: kept)
    for step in range(1000):  # returns although nothing is taken
        sink.stats({"step": step})
    go.set()
    sink.close()
    taken = [step for _, step in kept.got[:-1]]
    assert taken == list(range(len(taken))) and 256 <= len(taken) <= 258 and kept.got[-1] == ("close",)
    assert (
        caplog.records[-1].getMessage()
        == f"rankscope: it was too slow for {1000 - len(taken)} of the numbers: left out"
    )


def test_a_package_that_is_missing_is_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with caplog.at_level(logging.WARNING):
        (files,) = open_sinks(options(tmp_path, wandb=True, mlflow=True), MonitorDir(tmp_path), CONTEXT)
    files.close()
    assert [record.getMessage().partition("pip install ")[2] for record in caplog.records] == [
        "'rankscope[wandb]'",
        "'rankscope[mlflow]'",
    ]
    assert (
        len(open_sinks(options(tmp_path, wandb=True), MonitorDir(tmp_path), dataclasses.replace(CONTEXT, rank=1))) == 1
    )


def test_statistics_of_the_ranks_are_those_of_the_exchanged_steps(tmp_path: Path) -> None:
    kept: list[tuple[int, list[dict[str, float]]]] = []
    sink = Kept()
    sink.ranks = lambda step, stats: kept.append((step, stats))  # type: ignore[method-assign]
    log = RankLog(options(tmp_path, every=2, window=4), [sink])
    for first in (0, 2, 4):
        block = np.zeros((2, 3, len(PARTS)))
        block[:, :, 0] = [[1e6 * (first + 1), 2e6, 3e6], [1e6 * (first + 2), 2e6, 3e6]]
        block[:, 1, PARTS.index("data")] = 5e5
        log.add(first + 1, block)
    assert [step for step, _ in kept] == [1, 3, 5]
    stats = kept[-1][1]  # of steps 2 to 5: the window has four
    assert [own["step_ms_p50"] for own in stats] == [4.5, 2, 3]
    assert [own["data_wait_ms"] for own in stats] == [0, 0.5, 0]


def test_names_of_metrics() -> None:
    assert by_rank([{"step_ms_p50": 1.0}, {"step_ms_p50": 2.0}]) == {
        "rank_0/step_ms_p50": 1.0,
        "rank_1/step_ms_p50": 2.0,
    }
    many = by_rank([{"step_ms_p50": float(rank)} for rank in range(100)])
    assert many == {"ranks/step_ms_p50_min": 0, "ranks/step_ms_p50_max": 99, "ranks/step_ms_p50_median": 49.5}
    assert of_rank_0({"samples_per_s": None, "memory_peak_bytes": 7}) == {"rank_0/memory_peak_bytes": 7}
    events: list[dict[str, object]] = [
        {"event": "late_rank", "rank": 3},
        {"event": "recovered", "rank": 3},
        {"event": "window"},
    ]
    assert [late_rank(event) for event in events] == [{"late_rank": 3}, {"late_rank": -1}, {}]
