"""What waits of the host cost, against the same work without them. Both are simulated: one host, one device."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.analysis import load

STEPS, KERNELS, WAITS = 4, 120, 10  # a wait after every tenth launch
Event = dict[str, Any]


def run(seed: int, *, waits: bool) -> tuple[list[Event], float]:
    """Return the records of a job and how long it takes (us): launches of 5 to 20 us, kernels of 2 to 30 us."""
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
        note("user_annotation", f"ProfilerStep#{step}", began, host)
    return events, device


@pytest.mark.parametrize("seed", range(8))
def test_the_idle_time_behind_waits_is_what_the_job_loses_at_most(seed: int, tmp_path: Path) -> None:
    events, took = run(seed, waits=True)
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": 0}}))
    (rank,) = load(tmp_path).ranks
    lost = took - run(seed, waits=False)[1]
    found = rank.activity["sync_idle_ns"].sum() / 1000
    assert 0.85 * lost <= found <= lost + 1  # us: times are rounded to ns
