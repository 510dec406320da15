"""Reads `rank.json` of a rank: every value that the analysis uses has the type that docs/run-folder.md states.

A value of another type is left out, so that only the numbers that need it are unknown.
"""

from typing import Annotated, Any

import msgspec

from rankscope.analysis.read.rank_trace import Probe
from rankscope.conf.files import read_json
from rankscope.conf.run_dir import RankDir

Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Number = Annotated[float, msgspec.Meta(ge=0, le=1e30)]

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
    raw = read_json(rank_dir.info)
    if not isinstance(raw, dict):
        raise ValueError(f"{rank_dir.info}: not an object")
    return {key: value for key, value in raw.items() if key not in _TYPES or _fits(value, _TYPES[key])}


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError, RecursionError):
        return False
    return True
