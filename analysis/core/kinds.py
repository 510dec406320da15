"""What a record is, by its category and name: GPU work or not, communication or not, and which collective.

Comes in: strings as profilers write them, of every generation of NCCL and RCCL. Goes out: small integers.
When metadata names the collective it decides; a kernel's name is only a hint.
"""

import re

KERNEL, MEMCPY, MEMSET = 0, 1, 2
COMPUTE, COMMUNICATION, COPY = 0, 1, 2

# Categories of work on a device. Annotations and synchronisation records on device rows are never work.
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

_COMM_KERNEL = re.compile(r"(?:^|[^\w])(?:nccl|rccl|msccl)\w*", re.IGNORECASE)
_LAUNCH = re.compile(r"launch(?:cooperative)?kernel|graphlaunch|memcpy|memset|launchhostfunc", re.IGNORECASE)

# Collectives that cannot end anywhere before all ranks have arrived.
SYNCHRONISING = frozenset({"allreduce", "reducescatter", "allgather", "alltoall", "barrier"})
POINT_TO_POINT = frozenset({"send", "recv", "sendrecv"})

# Ordered: a name that holds several words is what the first of them says.
_KINDS = (
    ("barrier", re.compile(r"barrier")),
    ("reducescatter", re.compile(r"reduce_?scatter")),
    ("allreduce", re.compile(r"all_?reduce")),
    ("allgather", re.compile(r"all_?gather")),
    ("alltoall", re.compile(r"all_?to_?all|alltoall")),
    ("sendrecv", re.compile(r"send_?recv|batch_isend_irecv")),
    ("broadcast", re.compile(r"broadcast")),
    ("send", re.compile(r"\bsend|(?<=nccl:)send|isend")),
    ("recv", re.compile(r"\brecv|(?<=nccl:)recv|irecv")),
    ("gather", re.compile(r"gather")),
    ("scatter", re.compile(r"scatter")),
    ("reduce", re.compile(r"reduce")),
)

_BYTES = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "ComplexFloat": 8, "ComplexDouble": 16, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1,
    "Float8_e5m2fnuz": 1, "UInt16": 2, "UInt32": 4, "UInt64": 8,
}  # fmt: skip


def is_communication(kernel: str) -> bool:
    """Return whether a kernel's name is one of NCCL's or RCCL's."""
    return _COMM_KERNEL.search(kernel) is not None


def collective_kind(name: str | None) -> str:
    """Return the collective that a name stands for (`allreduce`, `allgather`, ...), `unknown` when it names none.

    Reads metadata (`_allgather_base`), annotations (`nccl:all_reduce_barrier`, `gloo:all_reduce`) and kernels
    (`ncclKernel_AllReduce_RING_LL_Sum_float`, `ncclDevKernel_ReduceScatter_...`).
    """
    text = (name or "").partition("(")[0].lower()
    for kind, pattern in _KINDS:
        if pattern.search(text):
            return kind
    return "unknown"


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


def dtype_bytes(dtype: str | None) -> int | None:
    """Return the size of one element (bytes) of a torch scalar type as the profiler names it, None if unknown."""
    return _BYTES.get(dtype or "")


def payload_bytes(kind: str, dtype: str | None, inputs: int | None, outputs: int | None) -> int | None:
    """Return S of nccl-tests for one call (bytes): see `bus_factor`; None when the trace does not say."""
    size = dtype_bytes(dtype)
    elements = outputs if kind == "allgather" else inputs
    return None if size is None or elements is None or elements < 0 else elements * size
