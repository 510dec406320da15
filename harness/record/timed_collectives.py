"""Times every collective of a window with NCCL's Flight Recorder, which needs no profiler; calls.json out.

The recorder keeps an entry for each collective if its buffer exists when the process group is made: the launcher sets
the variable. CUDA events around each collective are recorded from `start` on. A duration holds the wait for the others.
"""

import os
import pickle
import time
from typing import Any

import torch
import torch.distributed as dist

from rankscope.conf.contract import NO_COLLECTIVES, NO_RECORDER, RECORDER_ENTRIES, RECORDER_VARIABLES
from rankscope.harness.group.process_group import RankContext

_PATIENCE_S = 2.0  # NCCL's watchdog reads the events of completed collectives with a delay
_POLL_S = 0.1
_BATCH = ":coalesced"
_COMMON = ("is_p2p", "p2p_seq_id", "input_dtypes", "output_dtypes")  # of the operations of a batch


def why_not(context: RankContext) -> str | None:
    """Return why the collectives of this job cannot be timed, or None."""
    if context.world_size == 1 or not (dist.is_available() and dist.is_initialized()):
        return NO_COLLECTIVES
    if "nccl" not in str(dist.get_backend()):
        return f"{dist.get_backend()} {NO_RECORDER}"
    if not any(int(os.environ.get(name, "0") or 0) > 0 for name in RECORDER_VARIABLES):
        return f"NCCL's recorder is off ({RECORDER_VARIABLES[0]}=0)"
    if not hasattr(torch._C._distributed_c10d, "_dump_nccl_trace"):
        return f"torch {torch.__version__} cannot be asked for NCCL's record"
    return None


def keep_record() -> None:
    """Ask NCCL to keep a record of collectives; only before the first process group is made.

    Newer releases of torch warn about the old name of the variable, and older ones do not know the new one.
    """
    if not any(name in os.environ for name in RECORDER_VARIABLES):
        new, old = RECORDER_VARIABLES
        release = tuple(int(part) for part in torch.__version__.split(".")[:2])
        os.environ[new if release >= (2, 9) else old] = str(RECORDER_ENTRIES)


class TimedCollectives:
    """Between `start` and `stop` every collective is timed; `calls` has them as columns (docs/run-folder.md)."""

    def __init__(self) -> None:
        self.calls: dict[str, Any] = {}
        self.notes: list[str] = []
        self._since_ns = 0

    def start(self) -> None:
        for group in list(dist.distributed_c10d._world.pg_map):
            try:
                group._enable_collectives_timing()  # type: ignore[attr-defined]
            except RuntimeError:
                continue  # a group of another backend
        self._since_ns = time.time_ns()

    def stop(self) -> None:
        """Read the record; the device is idle."""
        deadline = time.monotonic() + _PATIENCE_S
        entries = with_batches(self._entries())
        while any("duration_ms" not in item for item in entries) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            entries = with_batches(self._entries())
        untimed = sum("duration_ms" not in item for item in entries)
        if untimed:
            self.notes.append(f"{untimed} of {len(entries)} collectives have no duration in NCCL's record")
        self.calls = {
            "source": "flight_recorder",
            "group": [_group(item) for item in entries],
            "seq": [item["p2p_seq_id" if item.get("is_p2p") else "collective_seq_id"] for item in entries],
            "kind": [item["profiling_name"] for item in entries],
            "in_nelems": [_elements(item.get("input_sizes")) for item in entries],
            "out_nelems": [_elements(item.get("output_sizes")) for item in entries],
            "dtype": [next(iter(item.get("input_dtypes") or ()), None) for item in entries],
            "duration_ns": [_ns(item.get("duration_ms")) for item in entries],
            "enqueued_ns": [item["time_created_ns"] for item in entries],
        }

    def _entries(self) -> list[dict[str, Any]]:
        # It comes from this process's own memory, so unpickling it is safe.
        record = pickle.loads(torch._C._distributed_c10d._dump_nccl_trace(True, False, False))  # type: ignore[attr-defined]
        return [item for item in record["entries"] if item["time_created_ns"] >= self._since_ns]


def with_batches(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry for each batch, with what its operations have in common and the sizes of all of them.

    NCCL's recorder has an entry for each send and receive of a batch, which is never timed, and after them one for the
    batch, which is.
    """
    found: list[dict[str, Any]] = []
    waiting: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        group = _group(entry)
        if entry["profiling_name"].endswith(_BATCH):
            found.append(_batch(entry, waiting.pop(group, [])))
        elif entry.get("is_p2p") and "duration_ms" not in entry:
            waiting.setdefault(group, []).append(entry)
        else:
            found.append(entry)
    alone = [entry for own in waiting.values() for entry in own]
    return sorted(found + alone, key=lambda entry: int(entry["time_created_ns"]))


def _batch(entry: dict[str, Any], parts: list[dict[str, Any]]) -> dict[str, Any]:
    if not parts:
        return entry
    names = {part["profiling_name"] for part in parts}
    common = {
        key: parts[0][key] for key in ("is_p2p", "p2p_seq_id", "input_dtypes", "output_dtypes") if key in parts[0]
    }
    sizes = {key: [size for part in parts for size in part.get(key) or ()] for key in ("input_sizes", "output_sizes")}
    return entry | common | sizes | {"profiling_name": names.pop() if len(names) == 1 else "nccl:sendrecv"}


def _group(entry: dict[str, Any]) -> str:
    name, description = (*entry.get("process_group", ("", "")), "")[:2]
    return f"{name}" if description in ("", "undefined", "default_pg") else f"{name} {description}"


def _elements(sizes: Any) -> int | None:
    """Return the number of elements of all tensors of a call."""
    if not sizes:
        return None
    total = 0
    for shape in sizes:
        count = 1
        for length in shape:
            count *= int(length)
        total += count
    return total


def _ns(duration_ms: float | None) -> int | None:
    return None if duration_ms is None else round(duration_ms * 1e6)
