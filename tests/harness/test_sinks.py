"""The places that a watched run is written to: its files, and the formats that the options ask for."""

import dataclasses
import json
import logging
import socket
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from rankscope.conf.monitor_dir import MonitorDir
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.watch.logs import EventLog, StepLog
from rankscope.harness.watch.options import Options
from rankscope.harness.watch.sinks.formats import open_sinks

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
        steps_from="recorder",
        on_event=None,
    )
    return dataclasses.replace(settings, **changes)


def row(step: int) -> Any:
    times = dict.fromkeys(("data_wait_ns", "h2d_ns", "forward_ns", "backward_ns", "optimizer_ns", "launch_ns"), 1000)
    return {"step": step, "start_ns": step, "host_ns": 5_000_000, "device_ns": None, **times} | {
        "memory_peak_bytes": None,
        "first_of_epoch": False,
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
