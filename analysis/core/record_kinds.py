"""The kinds of profilers' records: which table a record belongs to, and whether a call puts work on a device.

Input: strings as profilers write them. Output: table names and small integers. collective_kinds.py says which of them
are communication.
"""

import re

# What a device does during a record, and what the record counts as.
KERNEL, MEMCPY, MEMSET = 0, 1, 2
COMPUTE, COMMUNICATION, COPY = 0, 1, 2

# Categories of work on a device. Annotations and synchronisation records on device rows are not work.
DEVICE = {
    "kernel": KERNEL,
    "mtia_ccp_events": KERNEL,
    "gpu_memcpy": MEMCPY,
    "memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "memset": MEMSET,
}
RUNTIME = frozenset(
    {"cuda_runtime", "cuda_driver", "runtime", "xpu_runtime", "mtia_runtime", "privateuse1_runtime", "glow_runtime"}
)
OPERATOR = frozenset({"cpu_op", "operator"})
ANNOTATION = frozenset({"user_annotation", "cpu_user_annotation"})

_LAUNCH = re.compile(r"launch(?:cooperative)?kernel|graphlaunch|memcpy|memset|launchhostfunc", re.IGNORECASE)


def part_of(category: object) -> str | None:
    """Return the table that records of a category belong to: device, launches, host, or None."""
    text = str(category).lower()
    if text in DEVICE:
        return "device"
    if text in RUNTIME:
        return "launches"
    return "host" if text in OPERATOR or text in ANNOTATION else None


def is_launch(call: str) -> bool:
    """Return whether a runtime or driver call puts work on a device."""
    return _LAUNCH.search(call) is not None
