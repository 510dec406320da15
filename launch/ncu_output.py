"""What Nsight Compute prints, read: its CSV as rows, and whose kernel of a trace each row is.

CUPTI and ncu spell one kernel differently (namespaces, spaces, lambdas, `2ul` against `(unsigned long)2`), and ncu's
filter knows function names alone, which many instances of one template share. So names are compared by their words.
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
}
_NAME = re.compile(r"^(?:void\s+)?(?P<base>(?:\(anonymous namespace\)::|\w+::)*\w+)")
_SCALE = {"nsecond": 1.0, "usecond": 1e3, "msecond": 1e6, "second": 1e9, "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_NAMESPACE = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\b[A-Za-z_]\w*)::")
_WORD = re.compile(r"[A-Za-z_]\w*")
_SPELLING = frozenset(
    "void const unsigned signed long int char bool true false ul l u lambda instance operator anonymous".split()
)


def base_name(kernel: str) -> str:
    """Return a kernel's function name as `--kernel-name-base function` has it: no namespace, template or arguments."""
    match = _NAME.match(kernel)
    return (match["base"] if match else kernel).split("::")[-1]


def short_name(kernel: str) -> str:
    """Return what tells a kernel from others: its function, and the first functions among its template arguments."""
    name = _NAMESPACE.sub("", _before_arguments(kernel))
    inner = [word for word in _WORD.findall(name) if word not in _SPELLING and word != base_name(kernel)]
    telling = [word for word in inner if "_" in word or word.endswith("Functor")][:1]
    return base_name(kernel) + (f" {telling[0]}" if telling else "")


def words(kernel: str) -> frozenset[str]:
    """Return the words of a kernel's name that every tool spells alike: of its function and template arguments."""
    name = _before_arguments(kernel)
    return frozenset(_WORD.findall(_NAMESPACE.sub("", name))) - _SPELLING


def kernel_of(name: str, kernels: Sequence[str]) -> str | None:
    """Return which of the kernels of a trace ncu's `name` is; None for none. Of equal ones it is the first."""
    own = words(name)
    return next((kernel for kernel in kernels if words(kernel) == own), None)


def read_csv(text: str) -> list[dict[str, Any]]:
    """Return one row a launch of ncu's CSV (`--page raw`): its name, and the metrics (ns, percent; None if absent)."""
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


def _before_arguments(kernel: str) -> str:
    """Return a name up to the parenthesis of its arguments: the first one outside of template brackets."""
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
