"""The kinds of profilers' records: which table a record belongs to, and whether a call puts work on a device.

Input: strings as profilers write them. Output: table names and small integers. collective_kinds.py says which of them
are communication.
"""

import re

from rankscope.analysis.core.name_patterns import remembered

# What a device does during a record, and what the record counts as.
KERNEL, MEMCPY, MEMSET = 0, 1, 2
COMPUTE, COMMUNICATION, COPY = 0, 1, 2

# What a runtime call puts on a device.
WORK: dict[str | None, int] = {None: 0, "kernel": 1, "graph": 2, "copy": 3, "memset": 4}

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

_LAUNCH = re.compile(
    r"(?P<kernel>launch(?:cooperative)?kernel)|(?P<graph>graphlaunch)|(?P<copy>memcpy)|(?P<memset>memset)",
    re.IGNORECASE,
)


_DMA = re.compile(r"dma_request$")


@remembered
def is_copy(kernel: str) -> bool:
    """Return whether a record in the category of kernels is a copy: MTIA records its copies there."""
    return _DMA.match(kernel) is not None


def part_of(category: object) -> str | None:
    """Return the table that records of a category belong to: device, launches, host, or None."""
    text = str(category).lower()
    if text in DEVICE:
        return "device"
    if text in RUNTIME:
        return "launches"
    return "host" if text in OPERATOR or text in ANNOTATION else None


@remembered
def work_of(call: str) -> str | None:
    """Return what a runtime or driver call puts on a device: a word of `WORK`."""
    match = _LAUNCH.search(call)
    return None if match is None else match.lastgroup


def is_launch(call: str) -> bool:
    """Return whether a runtime or driver call puts work on a device."""
    return work_of(call) is not None
