"""Where a call was made: frames as torch.profiler writes them, and put around the waits of a real trace."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from rankscope.analysis import load
from rankscope.analysis.core.table import Table
from rankscope.analysis.read.kineto import reader as kineto
from rankscope.analysis.read.kineto.python_stacks import functions

from ..made_traces import MadeTrace

TRACE = Path(__file__).parents[2] / "data" / "traces" / "two_groups_w2"


def read_back(value: torch.Tensor) -> float:
    return value.sum().item()


def test_frames_of_torch_profiler(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as profiler:
        read_back(torch.ones(3))
        torch.ones(3).sum().item()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = kineto.read(tmp_path / "trace.json")
    assert trace.extra["with_stack"] == 1
    items: Table = trace.host.take(np.array(trace.host.texts("name")) == "aten::item")
    first, second = functions(tmp_path / "trace.json", items, kineto.base_time(trace.extra))
    line = read_back.__code__.co_firstlineno
    assert first is not None and first.endswith(f"test_python_stacks.py({line}): read_back")
    assert second is not None and second.endswith("test_frames_of_torch_profiler")


@pytest.mark.parametrize("stacks", [True, False])
def test_a_wait_for_the_device_says_whose_it_is(tmp_path: Path, stacks: bool) -> None:
    shutil.copytree(TRACE, tmp_path / "traces")
    for path in (tmp_path / "traces").glob("*.gz"):
        data = json.loads(gzip.decompress(path.read_bytes()))
        barriers = [event for event in data["traceEvents"] if event.get("name") == "c10d::barrier"]
        for event in barriers if stacks else []:
            start, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
            names = (
                "train.py(8): epoch",
                "train.py(31): meet",
                "torch/distributed/x.py(9): barrier",
                "queue.py(1): get",
            )
            for depth, name in enumerate(names):
                inner = {"ts": start - 4 + depth, "dur": end - start + 8 - 2 * depth}
                frame = {"ph": "X", "cat": "python_function", "name": name, "pid": event["pid"], "tid": event["tid"]}
                data["traceEvents"].append(frame | inner)
        data |= {"with_stack": 1} if stacks else {}
        path.write_bytes(gzip.compress(json.dumps(data).encode()))
    syncs = load(tmp_path / "traces").ranks[0].syncs
    assert set(syncs.texts("operator")) == {"c10d::barrier"}
    assert set(syncs.texts("function")) == {"train.py(31): meet" if stacks else None}


def test_a_frame_whose_return_is_lost_ends_when_its_caller_calls_again(tmp_path: Path) -> None:
    trace = MadeTrace()
    trace.extra["with_stack"] = 1
    trace.add("python_function", "train.py(1): <module>", 0, 5000, **{"Python id": 1})
    trace.add("python_function", "ops.py(12): helper", 100, 4900, **{"Python id": 2, "Python parent id": 1})
    trace.add("python_function", "<built-in method item>", 1200, 500, **{"Python id": 3, "Python parent id": 1})
    trace.add("cpu_op", "aten::item", 150, 10)
    trace.add("cpu_op", "aten::item", 1250, 10)
    path = trace.write(tmp_path / "rank0.json")
    read = kineto.read(path)
    items = read.host.take(np.array(read.host.texts("name")) == "aten::item")
    assert functions(path, items, 0) == ["ops.py(12): helper", "train.py(1): <module>"]
