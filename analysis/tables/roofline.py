"""The roofline: operators by arithmetic intensity, against the node's ceilings, as a table and a figure.

Input: `key_averages.parquet` of a run recorded with `profile=shapes` (FLOPs as torch.profiler counts them), and the
node's ceilings. Bytes are those of the operands and the result if the shapes give them (mm, addmm, bmm, baddbmm), each
counted once: the least that must be moved. What is unknown is null, never estimated.
"""

import math
from typing import Annotated, Any

import msgspec
import numpy as np

from rankscope.analysis.core.parquet import read_parquet
from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.analysis.measure.ceilings import Ceilings
from rankscope.conf import RunConfig
from rankscope.conf.contract import KEY_AVERAGES
from rankscope.conf.plain_text import drawn_text
from rankscope.conf.run_dir import RankDir

_ELEMENT = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_BOUND = ["compute", "memory"]
_MOST = 1 << 53  # of a number that is not damaged
_Shapes = list[list[Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]]]


def roofline(rank_dir: RankDir, config: RunConfig, ceilings: Ceilings | None) -> Table | None:
    """Return one row per operator and input shapes with counted FLOPs; None if the run has none."""
    try:
        rows = read_parquet(rank_dir.key_averages, KEY_AVERAGES).to_pylist()
    except (OSError, ValueError):
        return None
    rows = [row | {"took": row["self_device_ns"] or row["self_cpu_ns"]} for row in rows]
    rows = [row for row in rows if all(0 < (row[name] or 0) < _MOST for name in ("took", "flops", "count"))]
    if not rows:
        return None
    took = np.array([row["took"] for row in rows], float)
    flops = np.array([row["flops"] for row in rows], float)
    moved = [_bytes(row, _ELEMENT[config.precision.name]) for row in rows]
    size = np.array([np.nan if each is None else each * row["count"] for each, row in zip(moved, rows, strict=True)])
    intensity, rate = flops / size, flops / took / 1000  # FLOP/ns = GFLOP/s, here converted to TFLOP/s
    peak, bandwidth = peaks(config, ceilings)
    roof = np.full(len(rows), np.nan)
    bound = np.full(len(rows), -1, np.int32)
    if peak is not None and bandwidth is not None:
        roof = np.minimum(peak, intensity * bandwidth / 1000)
        known = ~np.isnan(intensity)
        bound[known] = np.where(intensity[known] * bandwidth / 1000 < peak, 1, 0)
    return Table(
        {
            "name": np.arange(len(rows), dtype=np.int32),
            "calls": np.array([row["count"] for row in rows], np.int64),
            "total_ns": took.astype(np.int64),
            "flops": flops.astype(np.int64),
            "bytes": np.array([UNKNOWN if np.isnan(value) else int(value) for value in size], np.int64),
            "intensity": intensity,
            "rate_TFLOPs": rate,
            "of_roof": rate / roof,
            "bound": bound,
        },
        {"name": [f"{row['name']} {row['input_shapes'] or ''}".strip() for row in rows], "bound": _BOUND},
    )


def peaks(config: RunConfig, ceilings: Ceilings | None) -> tuple[float | None, float | None]:
    """Return the node's measured arithmetic rate (TFLOP/s, in the run's precision) and memory bandwidth (GB/s)."""
    if ceilings is None:
        return None, None
    return ceilings.matmul_TFLOPs.get(config.precision.name), ceilings.d2d_GBs or ceilings.host_GBs


def _bytes(row: dict[str, Any], element: int) -> int | None:
    """Return the bytes of the operands and the result of one call; None if the shapes do not give them."""
    try:
        shapes = [shape for shape in msgspec.json.decode(row["input_shapes"] or "[]", type=_Shapes) if shape]
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    products = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
    first = products.get(row["name"])
    if first is None or len(shapes) < first + 2:
        return None
    left, right = shapes[first : first + 2]
    if len(left) < 2 or len(right) < 2:
        return None
    result = [*left[:-1], right[-1]]
    operands = [*shapes[: first + 2], result]
    found = sum(map(math.prod, operands)) * element
    return found if 0 < found * row["count"] < _MOST else None


def figure(table: Table, peak: float | None, bandwidth: float | None) -> Any:
    """Return the figure: each operator by intensity and rate, area by its time; roofs if they were measured."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(7.0, 4.4), layout="constrained")
    axes = drawn.add_subplot()
    axes.set_title("Roofline: operators with counted FLOPs and known bytes", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    known = ~np.isnan(table["intensity"])
    x, y, time = table["intensity"][known], table["rate_TFLOPs"][known], table["total_ns"][known]
    area = 20 + 380 * time / max(1, time.max(initial=1))
    axes.set_xscale("log")
    axes.set_yscale("log")
    if peak is not None and bandwidth is not None:
        ridge = peak * 1000 / bandwidth
        low, high = min([ridge / 10, *x]) / 2, max([ridge * 10, *x]) * 2
        line = np.geomspace(low, high, 200)
        axes.plot(line, np.minimum(peak, line * bandwidth / 1000), color="#444444", linewidth=1.2)
        axes.annotate(f"{peak:.3g} TFLOP/s measured", (high, peak), ha="right", va="bottom", fontsize=8)
        left = (low * 1.2, low * 1.2 * bandwidth / 1000)
        axes.annotate(f"{bandwidth:.3g} GB/s measured", left, ha="left", va="top", fontsize=8, xytext=(12, 0),
                      textcoords="offset points")  # fmt: skip
    axes.scatter(x, y, s=area, color="#0072B2", alpha=0.6, linewidths=0)
    names = [name for name, chosen in zip(table.texts("name"), known, strict=True) if chosen]
    for place in np.argsort(-time)[:3].tolist():
        label, at = drawn_text(str(names[place])[:40]), (x[place], y[place])
        axes.annotate(label, at, fontsize=7, ha="right", va="center", xytext=(-14, 0), textcoords="offset points")
    axes.set_xlabel("FLOPs per byte")
    axes.set_ylabel("TFLOP/s")
    return drawn
