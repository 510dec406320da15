"""What waits of the host cost, against the same work without them. Both are simulated: one host, one device."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.analysis import load

STEPS, KERNELS, WAITS = 4, 120, 10  # a wait after every tenth launch
Event = dict[str, Any]


def run(seed: int, *, waits: bool, blocks: bool = False) -> tuple[list[Event], float]:
    """Return the records of a job and how long it takes (us): launches of 5 to 20 us, kernels of 2 to 30 us.

    `blocks`: after each wait comes a copy from pageable memory, which waits for the device in any case.
    """
    random = np.random.default_rng(seed)
    events: list[Event] = []
    host = device = 1000.0

    def note(kind: str, name: str, start: float, end: float, **args: Any) -> None:
        on_device = kind == "kernel"
        place = {"pid": 0 if on_device else 1, "tid": 7 if on_device else 1}
        events.append({"ph": "X", "cat": kind, "name": name, "ts": start, "dur": end - start, **place, "args": args})

    for step in range(STEPS):
        began = host
        for number in range(KERNELS):
            launch, work = random.uniform(5, 20), random.uniform(2, 30)
            call = step * KERNELS + number
            note("cuda_runtime", "cudaLaunchKernel", host, host + 4, correlation=call)
            start = max(host + 4, device)
            device = start + work
            note("kernel", "elementwise_kernel", start, device, correlation=call, stream=7, device=0)
            host += launch
            if waits and number % WAITS == WAITS - 1:
                note("cuda_runtime", "cudaStreamSynchronize", host, max(host + 1, device), correlation=10**6 + call)
                host = max(host + 1, device)
            if blocks and number % WAITS == WAITS - 1:
                end = max(host + 200, device + 200)
                note("cuda_runtime", "cudaMemcpyAsync", host, end, correlation=2 * 10**6 + call)
                host = device = end
        note("user_annotation", f"ProfilerStep#{step}", began, host)
    return events, device


@pytest.mark.parametrize("seed", range(8))
def test_the_idle_time_behind_waits_is_what_the_job_loses_at_most(seed: int, tmp_path: Path) -> None:
    events, took = run(seed, waits=True)
    found, lost = idle_behind(events, tmp_path), took - run(seed, waits=False)[1]
    assert 0.85 * lost <= found <= lost + 1  # us: times are rounded to ns


def test_a_wait_costs_nothing_if_the_next_call_waits_too(tmp_path: Path) -> None:
    events, took = run(0, waits=True, blocks=True)
    lost = took - run(0, waits=False, blocks=True)[1]
    assert idle_behind(events, tmp_path) <= lost + 1


def test_a_thread_that_launches_nothing_holds_nothing_up(tmp_path: Path) -> None:
    events, _ = run(0, waits=False)
    wait = {"ph": "X", "cat": "cuda_runtime", "name": "cudaEventSynchronize", "pid": 1, "tid": 2}
    began, end = events[0]["ts"] + 300, events[0]["ts"] + 900
    events.append({**wait, "ts": began, "dur": end - began, "args": {"correlation": 10**7}})
    assert idle_behind(events, tmp_path) <= 30, "only up to the next record"


def idle_behind(events: list[Event], folder: Path) -> float:
    (folder / "rank0.json").write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": 0}}))
    (rank,) = load(folder).ranks
    return float(rank.activity["sync_idle_ns"].sum()) / 1000
