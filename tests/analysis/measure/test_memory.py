"""The memory's timeline: allocations written into a recorded run as torch.profiler writes them, and read back."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np

from rankscope.analysis.commands.analyze import main
from rankscope.analysis.pipeline import load
from rankscope.analysis.show.tables import tables
from rankscope.analysis.tables.memory_timeline import figure

RUN = Path(__file__).parents[2] / "data" / "runs" / "resnet_w2"
GPU = [(1, 100, 4096), (2, 300, 4096), (3, 50, 4096)]  # us after the window's first event, allocated, reserved


def recorded(folder: Path) -> Path:
    """Return a copy of a run whose rank 1 recorded its memory."""
    shutil.copytree(RUN, folder)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("profile_memory: false", "profile_memory: true"))
    path = folder / "passes" / "torch" / "ranks" / "1" / "trace.json.gz"
    trace = json.loads(gzip.decompress(path.read_bytes()))
    first = min(event["ts"] for event in trace["traceEvents"] if event.get("ph") == "X")
    for after, allocated, reserved in [(5, 7, 0), *GPU]:
        kind = 0 if after == 5 else 1
        totals = {"Total Allocated": allocated, "Total Reserved": reserved, "Bytes": 1, "Device Type": kind}
        event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": first + after}
        trace["traceEvents"].append(event | {"args": totals})
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    return folder


def test_the_gpu_s_memory_over_time(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    table = tables(load(run))["memory"]
    assert table["rank"].tolist() == [1, 1, 1] and table.texts("device") == ["GPU"] * 3
    assert table["allocated_bytes"].tolist() == [100, 300, 50] and table["reserved_bytes"].tolist() == [4096] * 3
    assert np.diff(table["time_ns"]).tolist() == [1000, 1000]
    assert main([str(run), "--quiet"]) == 0
    assert (run / "analysis" / "tables" / "memory.parquet").exists()
    assert (run / "analysis" / "figures" / "memory.png").read_bytes().startswith(b"\x89PNG")
    drawn = figure(table, np.zeros(0, np.int64)).axes[0]
    assert max(drawn.lines[0].get_ydata()) == 300 / 1e9


def test_a_run_that_recorded_none_has_no_table() -> None:
    assert "memory" not in tables(load(RUN))
