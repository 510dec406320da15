"""Finds out what kind of device a rank used, from the properties in its trace and the names of its runtime calls."""

import re

from rankscope.analysis.rank.rank_data import DeviceModel
from rankscope.analysis.read.rank_trace import RankTrace

_AMD = re.compile(r"\bAMD\b|Instinct|Radeon|gfx\d", re.IGNORECASE)
_AMD_CALL, _NVIDIA_CALL = re.compile(r"hip[A-Z]"), re.compile(r"cu(?:da)?[A-Z]")
_AMD_WAVE = 64  # threads


def model_of(trace: RankTrace, device: int | None) -> DeviceModel | None:
    """Return the kind of the device; None on a CPU, or if nothing tells."""
    if device is None:
        return None
    calls = trace.launches.words["name"]
    called_amd, called_nvidia = (any(map(pattern.match, calls)) for pattern in (_AMD_CALL, _NVIDIA_CALL))
    listed = trace.extra.get("deviceProperties")
    items = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    found = next((item for item in items if item.get("id") == device), items[0] if len(items) == 1 else {})
    name, major = found.get("name"), found.get("computeMajor")
    name = name if isinstance(name, str) else None
    if (name and _AMD.search(name)) or found.get("warpSize") == _AMD_WAVE or (called_amd and not called_nvidia):
        return DeviceModel(vendor="amd", name=name)
    if called_nvidia or isinstance(major, int):
        return DeviceModel(vendor="nvidia", name=name, compute_major=major if type(major) is int else None)
    return DeviceModel(vendor="other", name=name) if calls else None
