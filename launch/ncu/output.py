"""Reads the output of Nsight Compute: its CSV as rows, each joined to a kernel of the trace.

CUPTI and ncu spell the same kernel differently (namespaces, spaces, lambdas, `2ul` or `(unsigned long)2`), and ncu
filters by function name only, which many instances of a template share. So names are compared by their words.
"""

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

METRICS = {
    "gpu__time_duration.sum": "duration_ns",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm_percent",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory_percent",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "achieved_occupancy_percent",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": "tensor_percent",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "tensor_busy_percent",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active": "tensor_hmma_busy_percent",
}
SOME_GPUS = (
    "sm__pipe_tensor_cycles_active",
    "sm__pipe_tensor_op_hmma_cycles_active",
)  # asked for only if ncu lists them
_SHOWN = {
    "sm_percent": "SM %",
    "memory_percent": "DRAM %",
    "achieved_occupancy_percent": "warps %",
    "tensor_percent": "issue %",
    "tensor_busy_percent": "tensor %",
}
_WIDTH = 80
_NAME = re.compile(r"^(?:void\s+)?(?P<base>(?:\(anonymous namespace\)::|\w+::)*\w+)")
_SCALE = {"nsecond": 1.0, "usecond": 1e3, "msecond": 1e6, "second": 1e9, "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_NAMESPACE = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\b[A-Za-z_]\w*)::")
_WORD = re.compile(r"[A-Za-z_]\w*")
_SPELLING = frozenset(
    "void const unsigned signed long int char bool true false ul l u lambda instance operator anonymous".split()
)


def metrics_here(listed: str | None) -> list[str]:
    """Return the metrics to ask for: those of every GPU, and those of some GPUs that are in ncu's list."""
    return [name for name in METRICS if name.split(".")[0] not in SOME_GPUS or name.split(".")[0] in (listed or "")]


def base_name(kernel: str) -> str:
    """Return the function name as `--kernel-name-base function` gives it, without namespace, template and arguments."""
    match = _NAME.match(kernel)
    return (match["base"] if match else kernel).split("::")[-1]


def short_name(kernel: str) -> str:
    """Return a distinctive name: the first function among the template arguments, otherwise the kernel's own."""
    name = _NAMESPACE.sub("", _before_arguments(kernel))
    inner = [word for word in _WORD.findall(name) if word not in _SPELLING and word != base_name(kernel)]
    telling = [word for word in inner if "_" in word or word.endswith("Functor")][:1]
    return telling[0] if telling else base_name(kernel)


def words(kernel: str) -> frozenset[str]:
    """Return the words of the function and its template arguments that every tool spells the same."""
    name = _before_arguments(kernel)
    return frozenset(_WORD.findall(_NAMESPACE.sub("", name))) - _SPELLING


def kernel_of(name: str, kernels: Sequence[str]) -> str | None:
    """Return the first kernel of the trace that has the same words as ncu's `name`, or None."""
    own = words(name)
    return next((kernel for kernel in kernels if words(kernel) == own), None)


def read_csv(text: str) -> list[dict[str, Any]]:
    """Return one row per launch in ncu's CSV (`--page raw`): name and metrics (ns, percent; None if absent)."""
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    header, *rest = list(csv.reader(io.StringIO("\n".join(lines[start:]))))
    units = dict(zip(header, rest[0], strict=False)) if rest and not rest[0][0] else {}
    rows = []
    for record in rest[1 if units else 0 :]:
        cells = dict(zip(header, record, strict=False))
        row: dict[str, Any] = {"name": cells.get("Kernel Name", "")}
        for metric, name in METRICS.items():
            value = _float(cells.get(metric))
            row[name] = value * _SCALE.get(units.get(metric, ""), 1.0) if value is not None else None
        rows.append(row)
    return rows


def lines_of(rows: Sequence[dict[str, Any]], kernels: Sequence[str]) -> list[str]:
    """Return a table of the requested kernels, the heaviest first; `-` if nothing was measured.

    A row has the mean time over the measured launches of a kernel, and percentages weighted by time.
    """
    shown = {name: title for name, title in _SHOWN.items() if any(row[name] is not None for row in rows)}
    head = " ".join([f"{'n':>3} {'us':>7}", *(f"{title:>6}" for title in shown.values()), ""])
    lines = [f"{head} kernel"]
    for kernel in kernels:
        own = [row for row in rows if row["kernel"] == kernel]
        times = [row["duration_ns"] for row in own if row["duration_ns"]]
        took = f"{sum(times) / len(times) / 1000:.1f}" if times else "-"
        cells = [f"{_weighted(own, name):>{max(6, len(title))}}" for name, title in shown.items()]
        name = _cut(short_name(kernel), _WIDTH - len(lines[0]) + len("kernel"))
        lines.append(" ".join([f"{len(own):>3} {took:>7}", *cells, "", name]))
    others = sum(row["kernel"] is None for row in rows)
    if others:
        lines.append(f"{others} more launches are of kernels with the same name: tables/ncu.parquet")
    return [*lines, "n: measured launches; issue: instructions to the tensor cores, of the peak"]


def _cut(name: str, width: int) -> str:
    """Return a name without its middle if it is too long: kernels differ at either end."""
    half = (width - 1) // 2
    return name if len(name) <= width else f"{name[:half]}…{name[-(width - half - 1) :]}"


def _weighted(rows: Sequence[dict[str, Any]], name: str) -> str:
    known = [(row[name], row["duration_ns"]) for row in rows if row[name] is not None and row["duration_ns"]]
    whole = sum(took for _, took in known)
    return f"{sum(value * took for value, took in known) / whole:.1f}" if whole else "-"


def _before_arguments(kernel: str) -> str:
    """Return a name up to its arguments, which begin at the first parenthesis outside template brackets."""
    depth = 0
    for at, letter in enumerate(kernel):
        depth += (letter == "<") - (letter == ">" and kernel[at - 1] != "-")
        if letter == "(" and depth == 0 and not kernel.startswith("(anonymous namespace)", at):
            return kernel[:at]
    return kernel


def _float(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None
