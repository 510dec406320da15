"""SM efficiency: by hand from a real trace's JSON, by brute force, and the same job under Nsight Systems."""

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis import Analysis, load, summarise
from rankscope.analysis.core.record_kinds import KERNEL, MEMCPY
from rankscope.analysis.core.sm_share import WHOLE, sm_time
from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.analysis.options import Options
from rankscope.analysis.read.kineto import reader as kineto
from rankscope.analysis.tables.operators import kernels_by_name

DATA = Path(__file__).parents[2] / "data"
TRACE = DATA / "traces" / "comm_bound_w4" / "rank0.json.gz"
KINDS = ("kernel", "gpu_memcpy", "gpu_memset")


@cache
def analysed(path: Path) -> Analysis:
    return load(path, options=Options(cache=False))


@cache
def work() -> dict[int, list[tuple[int, int, str, float | None]]]:
    """Start, end (ns), name and blocks per SM of what each step launched, out of the JSON of `TRACE`."""
    events = json.loads(gzip.decompress(TRACE.read_bytes()), parse_float=Decimal)["traceEvents"]
    timed = [event for event in events if event["ph"] == "X"]
    launched = {e["args"]["correlation"]: e["ts"] for e in timed if e["cat"] in ("cuda_runtime", "cuda_driver")}
    marks = {e["name"]: (e["ts"], e["ts"] + e["dur"]) for e in timed if e["cat"] == "user_annotation"}
    found = defaultdict(list)
    for event in (event for event in timed if event["cat"] in KINDS):
        at = launched.get(event["args"]["correlation"], -1)
        step = next((n for n in range(4, 8) for a, b in [marks[f"ProfilerStep#{n}"]] if a <= at < b), -1)
        start, blocks = int(event["ts"] * 1000), event["args"].get("blocks per SM")
        row = start, start + int(event["dur"] * 1000), event["name"], None if blocks is None else float(blocks)
        found[step].append(row)
    return found


def test_kernels_by_hand() -> None:
    """sum(duration x min(1, blocks per SM)) / sum(duration) over the launches of a name."""
    rows = [row for step in range(4, 8) for row in work()[step] if row[3] is not None]
    found = kernels_by_name(analysed(TRACE.parent)).to_pandas().query("rank == 0").set_index("name")["sm_efficiency"]
    names = {row[2] for row in rows}
    for name in names:
        own = [(end - start, min(1.0, blocks)) for start, end, other, blocks in rows if other == name and blocks]
        expected = sum(took * share for took, share in own) / sum(took for took, _ in own)
        assert found[name] == pytest.approx(expected, rel=1e-9)
    assert len(names) > 30 and found.drop(list(names)).isna().all()  # copies have no blocks


@pytest.mark.parametrize("step", [5, 6, 7])
def test_a_step_by_hand(step: int) -> None:
    """Of the time from the last work of the step before to its own last: min(1, blocks per SM of all that run)."""
    begin, over = (max(row[1] for row in work()[number]) for number in (step - 1, step))
    kernels = [row for rows in work().values() for row in rows if row[3] is not None]
    kernels = [row for row in kernels if row[1] > begin and row[0] < over]
    edges = sorted({begin, over, *(time for row in kernels for time in row[:2] if begin < time < over)})
    used = 0.0
    for left, right in pairwise(edges):
        used += (right - left) * min(1.0, sum(row[3] or 0 for row in kernels if row[0] <= left and row[1] >= right))
    row = analysed(TRACE.parent).steps().query("rank == 0 and step == @step").iloc[0]
    assert row["step_ns"] == over - begin
    assert row["sm_efficiency"] == pytest.approx(used / (over - begin), rel=1e-6)
    assert row["sm_efficiency"] < sum((r[1] - r[0]) * min(1, r[3] or 0) for r in work()[step]) / (over - begin)


def test_two_profilers_say_the_same() -> None:
    """The same job of 4 H100s, run twice: grids and SMs from Nsight Systems, blocks per SM from torch.profiler."""
    torch, nsys = (analysed(DATA / kind / "big_baseline_w4") for kind in ("traces", "nsys"))
    for a, b in zip(summarise(torch)["per_rank"], summarise(nsys)["per_rank"], strict=True):
        assert a["sm_efficiency"] == pytest.approx(b["sm_efficiency"], abs=0.005)
        assert 0.9 < a["sm_efficiency"] < a["gpu_busy_ratio"]
    tables = [kernels_by_name(each).to_pandas().query("rank == 0").set_index("name") for each in (torch, nsys)]
    gemms = [name for name in tables[0].index if name.startswith(("nvjet", "cudnn"))]  # one spelling in both
    a, b = (table.loc[gemms, "sm_efficiency"] for table in tables)
    assert len(gemms) == 10 and (a - b).abs().max() < 1e-4 and (a < 1).sum() == 3


TIME = st.integers(0, 30)
ROW = st.tuples(TIME, TIME, st.sampled_from([1, 3, 4, 7, 8, None]), st.sampled_from([KERNEL, KERNEL, MEMCPY]))


@given(st.lists(ROW, max_size=8), st.lists(st.tuples(TIME, TIME), max_size=4))
def test_sm_time_by_brute_force(rows: list[tuple[int, int, int | None, int]], windows: list[tuple[int, int]]) -> None:
    """Eighths of the SMs, 8 ns by 8 ns; unknown where a kernel of unknown share runs in the window."""
    windows = [(min(window), max(window)) for window in windows]
    columns: dict[str, Any] = {
        "start": np.array([min(row[:2]) * 8 for row in rows], np.int64),
        "end": np.array([max(row[:2]) * 8 for row in rows], np.int64),
        "sm_share": np.array([UNKNOWN if row[2] is None else row[2] * WHOLE // 8 for row in rows], np.int64),
        "activity": np.array([row[3] for row in rows], np.int64),
    }
    starts, ends = (np.array([window[at] * 8 for window in windows], np.int64) for at in (0, 1))
    found = sm_time(Table(columns), starts, ends).tolist()
    for (start, end), value in zip(windows, found, strict=True):
        running = [[r for r in rows if r[3] == KERNEL and min(r[:2]) <= t < max(r[:2])] for t in range(start, end)]
        if any(row[2] is None for now in running for row in now):
            assert value == UNKNOWN
        elif value != UNKNOWN:
            assert value == sum(min(8, sum(row[2] or 0 for row in now)) for now in running)
        else:
            assert start == end


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("0.181818", 181_818_000_000),
        ("0.007575757800", 7_575_757_800),
        ("248.242432", WHOLE),
        ("1", WHOLE),
        ("99999999999999999999.5", WHOLE),
        ("0.24242424242424243", 242_424_242_424),  # more decimals than are kept
        ("5e-1", WHOLE // 2),
        ('"0.5"', WHOLE // 2),
        ("0", 0),
        ("0.000000", 0),
        ("-2.5", 0),
        ("true", UNKNOWN),
        ("nan", UNKNOWN),
        ('"many"', UNKNOWN),
        ("[1]", UNKNOWN),
        ("null", UNKNOWN),
    ],
)
def test_what_may_stand_there(tmp_path: Path, fast: bool, text: str, share: int) -> None:
    event = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":2,"args":{"blocks per SM":' + text + "}}"
    (tmp_path / "rank0.json").write_text('{"traceEvents":[' + event + "]}")
    assert kineto.read(tmp_path / "rank0.json", fast=fast).device["sm_share"].tolist() == [share]


def test_one_kernel_without_blocks_makes_its_rank_unknown(tmp_path: Path) -> None:
    folder = DATA / "traces" / "cuda_graphs_w2"
    for path in folder.glob("rank*"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        if "rank1" in path.name:
            kernels = [event for event in document["traceEvents"] if event.get("cat") == "kernel"]
            del kernels[len(kernels) // 2]["args"]["blocks per SM"]
        (tmp_path / path.name.removesuffix(".gz")).write_text(json.dumps(document))
    summary = summarise(load(tmp_path))
    assert [row["sm_efficiency"] is None for row in summary["per_rank"]] == [False, True]
    (notice,) = [notice for notice in summary["warnings"] if notice["kind"] == "no_sm_efficiency"]
    assert notice["ranks"] == [1] and "blocks per SM" in notice["message"]
