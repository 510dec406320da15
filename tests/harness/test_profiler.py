"""Where torch.profiler stops: what other threads record has ended, and the step has too."""

import gzip
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rankscope.conf import RankDir
from rankscope.conf.sections import ProfileConfig
from rankscope.harness.group.gloo_threads import wait_until_idle
from rankscope.harness.record.torch_profiler import StepProfiler

from .test_parts import context_of


def two_ranks() -> list[Any]:
    """Return two ranks of one group of gloo, both in this process."""
    c10d: Any = dist  # whose stubs leave the classes out
    store = c10d.HashStore()
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda rank: c10d.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60)), range(2)))


def test_the_profiler_stops_after_the_collectives_under_way(tmp_path: Path) -> None:
    mine, other = two_ranks()
    rank_dir = RankDir(tmp_path / "0")
    rank_dir.path.mkdir()
    profiler = StepProfiler(ProfileConfig(wait=0, warmup=1, active=1), context_of(), rank_dir, {})
    began: list[int] = []

    def be_late() -> None:
        time.sleep(0.3)
        began.append(time.time_ns())
        other.allreduce([torch.ones(4)]).wait()

    profiler.start()
    profiler.step()
    late = threading.Thread(target=be_late)
    late.start()
    work = mine.allreduce([torch.ones(4)])
    assert not wait_until_idle(0.0)
    profiler.step()
    late.join()
    work.wait()
    profiler.stop()
    with gzip.open(rank_dir.trace) as file:
        trace = json.load(file)
    ends = {
        event["name"]: trace["baseTimeNanoseconds"] + (event["ts"] + event["dur"]) * 1000
        for event in trace["traceEvents"]
        if event.get("cat") == "user_annotation"
    }
    assert ends["gloo:all_reduce"] >= began[0] > ends["ProfilerStep#1"]
