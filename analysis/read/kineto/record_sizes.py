"""Adds the sizes of collectives that have no metadata. Input: a trace and its file. Output: the trace with sizes.

Gloo writes no metadata about its collectives, and torch wrote none about NCCL's before 2.2. With `record_shapes`, their
records on the CPU have the dimensions and the type of the first tensor list. The reader does not keep shapes, because
every operator has some. So this module reads the file again for these few records.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.core.collective_kinds import has_shapes, is_communication, is_host_collective, scalar_type
from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.analysis.read.decode import nanoseconds
from rankscope.analysis.read.kineto.columns import HAS_SHAPES
from rankscope.analysis.read.kineto.reader import base_time
from rankscope.analysis.read.kineto.stream import Stream
from rankscope.analysis.read.rank_trace import RankTrace

_RECORD = re.compile(rb'\{[^{}]*"name":\s*"(?:gloo:|nccl:|record_param_comms)[^"]*"[^{}]*"args":\s*\{[^{}]*\}[^{}]*\}')
_LONGEST = 1 << 16  # bytes of a record


class _Args(msgspec.Struct):
    dims: Any = msgspec.field(name="Input Dims", default=None)
    types: Any = msgspec.field(name="Input type", default=None)


class _Record(msgspec.Struct):
    ts: float | int | str
    args: _Args


def with_sizes(trace: RankTrace, path: Path) -> RankTrace:
    """Return the trace with the element counts and types of such collectives, if it was recorded with shapes."""
    if not trace.extra.get(HAS_SHAPES, True):
        return trace
    host = trace.host
    rows = np.flatnonzero(host.where("name", has_shapes))
    rows = rows[(host["in_nelems"][rows] == UNKNOWN) & (host["collective"][rows] < 0)]
    found = _records(path, base_time(trace.extra)) if len(rows) and _lacks_sizes(trace) else {}
    if not found:
        return trace
    counts, types = host["in_nelems"].copy(), host["dtype"].copy()
    words = list(host.words["dtype"])
    for row in rows.tolist():
        count, kind = found.get(int(host["start"][row]), (None, None))
        if count is not None:
            counts[row] = count
            if kind is not None and kind not in words:
                words.append(kind)
            types[row] = -1 if kind is None else words.index(kind)
    filled = Table({**host.columns, "in_nelems": counts, "dtype": types}, {**host.words, "dtype": words})
    device = Table(trace.device.columns, {**trace.device.words, "dtype": words})  # both share their codes
    return msgspec.structs.replace(trace, host=filled, device=device)


def _lacks_sizes(trace: RankTrace) -> bool:
    """Return whether there are collectives without metadata: communication kernels, or records of gloo."""
    kernels = trace.device.where("name", is_communication) & (trace.device["collective"] < 0)
    return bool(kernels.any()) or bool(trace.host.where("name", is_host_collective).any())


def _records(path: Path, base: int) -> dict[int, tuple[int, str | None]]:
    """Return element count and type by the start of the record (ns since 1970)."""
    found: dict[int, tuple[int, str | None]] = {}
    try:
        for text in _overlapping(Stream(path)):
            if b'"Input Dims"' in text:
                found |= _found_in(text, base)
    except OSError:
        pass
    return found


def _overlapping(windows: Iterable[bytes]) -> Iterator[bytes]:
    """Return windows that begin with the end of the one before, so that each record is complete in one of them."""
    end = b""
    for window in windows:
        yield end + window
        end = window[-_LONGEST:]


def _found_in(text: bytes, base: int) -> dict[int, tuple[int, str | None]]:
    found: dict[int, tuple[int, str | None]] = {}
    for match in _RECORD.finditer(text):
        try:
            record = msgspec.json.decode(match[0], type=_Record, strict=False)
        except (msgspec.DecodeError, msgspec.ValidationError):
            continue
        count = _elements(record.args.dims)
        types = record.args.types
        kind = scalar_type(types[0]) if isinstance(types, list) and types else None
        if count is not None:
            found[int(nanoseconds([record.ts])[0]) + base] = (count, kind)
    return found


def _elements(dims: Any) -> int | None:
    """Return the number of elements of all tensors of a record; None if its dimensions are not lists of integers."""
    if not isinstance(dims, list) or not dims:
        return None
    total = 0
    for shape in dims:
        if not isinstance(shape, list) or not all(isinstance(length, int) for length in shape):
            return None
        total += int(np.prod(shape, dtype=object)) if shape else 0
    return total if 0 < total < 2**62 else None
