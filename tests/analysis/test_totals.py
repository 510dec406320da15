"""Totals of real traces against a computation of their own: the JSON module and intervals, nothing of rankscope."""

import gzip
import json
from decimal import Decimal
from pathlib import Path

import pytest

from rankscope.analysis import load, summarise

TRACES = Path(__file__).parents[1] / "data" / "traces"
Spans = list[tuple[int, int]]


def length(spans: Spans) -> int:
    """Return the length of the union: sweep over the ends, and count how many spans are open."""
    edges = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans], key=lambda edge: edge[0])
    total = depth = since = 0
    for at, step in edges:
        total += at - since if depth else 0
        depth, since = depth + step, at
    return total


def device_spans(path: Path) -> dict[str, Spans]:
    """Return what ran on the device by kind (ns): collectives are the kernels of NCCL."""
    trace = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    found: dict[str, Spans] = {"compute": [], "comm": [], "memory": []}
    for event in trace["traceEvents"]:
        if event.get("ph") != "X" or event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        start = int(Decimal(event["ts"]) * 1000)
        kind = "memory" if event["cat"] != "kernel" else "comm" if event["name"].startswith("nccl") else "compute"
        found[kind].append((start, start + int(Decimal(event["dur"]) * 1000)))
    return found


@pytest.mark.parametrize("place", sorted(path.name for path in TRACES.iterdir()))
def test_totals(place: str) -> None:
    summary = summarise(load(TRACES / place))
    for row in summary["totals"]:
        spans = device_spans(TRACES / place / f"rank{row['rank']}.json.gz")
        compute, comm = length(spans["compute"]), length(spans["comm"])
        exposed = length(spans["compute"] + spans["comm"]) - compute
        assert row["compute_us"] * 1000 == pytest.approx(compute, abs=1)
        assert row["comm_us"] * 1000 == pytest.approx(comm, abs=1)
        assert row["overlap_us"] * 1000 == pytest.approx(comm - exposed, abs=1)
        assert row["memory_us"] * 1000 == pytest.approx(length(spans["memory"]), abs=1)
        assert row["busy_us"] * 1000 == pytest.approx(length([span for kind in spans.values() for span in kind]), abs=1)
