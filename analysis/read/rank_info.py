"""Reads `rank.json` of a rank: every value that the analysis uses has the type that docs/run-folder.md states."""

from typing import Any

from rankscope.analysis.read.rank_trace import Probe
from rankscope.conf.run_dir import RankDir
from rankscope.conf.typed_json import Count, Int, Number, read_object

_MOST_BYTES = 1 << 20  # a hundred times what a rank writes; it is read several times for each of many ranks
_TYPES: dict[str, Any] = {
    "rank": Count,
    "world_size": Count,
    "host": str,
    "boot_id": str,
    "device": str,
    "device_name": str,
    "backend": str,
    "threads": Count,
    "affinity": list[Count],
    "samples_per_step": Number,
    "flops_per_sample": Number,
    "memory_peak_bytes": Count,
    "module_memory_bytes": dict[str, Int],
    "bucket_bytes": list[Count],
    "clock_probes": list[Probe],
    "notes": list[str],
    "step_is": str,
}


def read_rank_info(rank_dir: RankDir) -> dict[str, Any]:
    """Return the values that have their type. Raises `OSError`, or `ValueError` if the file is no JSON object."""
    return read_object(rank_dir.info, _TYPES, most=_MOST_BYTES)
