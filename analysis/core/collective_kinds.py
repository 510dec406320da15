"""Everything that the analysis knows about collectives by name: kernels, records, kinds, payload.

To recognise a new vendor's kernels, add a line to `_KERNELS`; for a new torch backend, add its prefix to
`_HOST_BACKENDS` or `_DEVICE_BACKENDS`; for a new collective, add it to `KINDS`. test_collective_kinds.py has an example
of each. The factor from payload to bus bandwidth is `conf.contract.bus_factor`, because harness needs it as well.
"""

import re
from dataclasses import dataclass

from rankscope.analysis.core.name_patterns import remembered

# Communication kernels by vendor: how their names begin, at the start or after a character such as a space.
_KERNELS = {
    "NVIDIA NCCL": r"nccl",  # github.com/NVIDIA/nccl, src/device: ncclDevKernel_*, ncclSymDevKernel_*, ncclKernel_*
    "AMD RCCL": r"rccl",  # github.com/ROCm/rccl: most keep NCCL's names (ncclDevKernel_Generic_*)
    "Microsoft MSCCL": r"msccl",  # github.com/Azure/msccl and RCCL's copy of it: mscclKernel_*
    "DeepSeek DeepEP": r"deep_ep::(?:intranode|internode)",  # github.com/deepseek-ai/DeepEP, csrc/kernels
    "torch symmetric memory": r"(?:multimem|one_shot|two_shot)_(?:\w+_)?(?:all_reduce|all_gather|reduce_scatter)",
    "vLLM, SGLang": r"cross_device_reduce_",  # csrc/custom_all_reduce.cuh of both
    "TensorRT-LLM, FlashInfer": r"(?:\w+_)?allreduce_fusion_kernel",  # trtllm_allreduce_fusion.cuh
    "TensorRT-LLM, FlashInfer, Mooncake": r"\w*(?:one|two)shotallreduce\w*",  # customAllReduceKernels.cu, mnnvl
    "TensorRT-LLM's experts": r"moea2a(?:dispatch|combine)\w*|moealltoall\w*",  # communicationKernels/moeAlltoAll*
    "Transformer Engine": r"k?userbuffers_",  # transformer_engine/common/comm_gemm_overlap/userbuffers
    "AMD AITER": r"aiter::(?:allgather_|reduce_scatter_cross_device)",  # csrc/include/custom_all_reduce.cuh
    "vLLM's quick all-reduce": r"quickreduce::",  # csrc/quickreduce
    "NVSHMEM": r"nvshmem|c10d::nvshmem_extension::|(?:barrier|sync)_on_stream_kernel",  # and torch's kernels on it
    "Intel oneCCL": r"oneccl",  # this name and the next were not seen in a trace
    "Huawei HCCL": r"hccl|hcom_",
}
_KERNEL = re.compile(rf"(?:^|[^\w])(?:{'|'.join(_KERNELS.values())})", re.IGNORECASE)

# Prefixes of the records that torch's process groups write on the CPU, for example `gloo:all_reduce`: see
# torch/csrc/distributed/c10d/ProcessGroup*.cpp.
_HOST_BACKENDS = ("gloo", "mpi", "ucc", "xccl")  # without device work, the record itself is the collective
_DEVICE_BACKENDS = ("nccl",)  # the record launches a kernel; RCCL uses the same prefix

_HOST_COLLECTIVE = re.compile(rf"(?:{'|'.join(_HOST_BACKENDS)}):", re.IGNORECASE)
_LAUNCHES_COLLECTIVE = re.compile(rf"(?:{'|'.join(_DEVICE_BACKENDS)}):")
_WITH_SHAPES = re.compile(r"(?:gloo|nccl):|record_param_comms$")
# c10d:: and record_param_comms are torch's own records around those of a backend.
_OF_COLLECTIVE = re.compile(
    rf"(?:{'|'.join((*_HOST_BACKENDS, *_DEVICE_BACKENDS))}):|c10d::|record_param_comms", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One collective: how to find it in a name, and what holds for all of its calls."""

    pattern: re.Pattern[str]  # searched in the lower-case name
    synchronising: bool = False  # it cannot end on any rank before all ranks have arrived
    point_to_point: bool = False
    even: bool = False  # sizes must agree on all ranks; all-to-all and scatter may be uneven
    per_part: bool = False  # NCCL's own message size is that of one rank's part, not the total
    payload_of_output: bool = False  # the payload is the output's size, not the input's


# The order matters: a name that matches several patterns has the first kind.
KINDS = {
    "barrier": Kind(pattern=re.compile(r"barrier"), synchronising=True),
    "reducescatter": Kind(
        pattern=re.compile(r"reduce_?scatter|userbuffers_\w*_rs(?:_|\b)"), synchronising=True, even=True, per_part=True
    ),
    "allgather": Kind(
        pattern=re.compile(r"all_?gather|userbuffers_\w*_ag(?:_|\b)"),
        synchronising=True,
        even=True,
        per_part=True,
        payload_of_output=True,
    ),
    "allreduce": Kind(
        pattern=re.compile(r"all_?reduce|cross_device_reduce|quickreduce::|userbuffers_\w*sum_inplace"),
        synchronising=True,
        even=True,
    ),
    "alltoall": Kind(
        pattern=re.compile(r"all_?(?:to|2)_?all|moea2a|deep_ep::\w+::(?:dispatch|combine)"),
        synchronising=True,
        per_part=True,
    ),
    "sendrecv": Kind(pattern=re.compile(r"send_?recv|batch_isend_irecv"), point_to_point=True),
    "broadcast": Kind(pattern=re.compile(r"broadcast"), even=True),
    "send": Kind(pattern=re.compile(r"\bsend|(?<=nccl:)send|isend|pushsend"), point_to_point=True),
    "recv": Kind(pattern=re.compile(r"\brecv|(?<=nccl:)recv|irecv|pushrecv"), point_to_point=True),
    "gather": Kind(pattern=re.compile(r"gather")),
    "scatter": Kind(pattern=re.compile(r"scatter")),
    "reduce": Kind(pattern=re.compile(r"reduce"), even=True),
}
UNKNOWN_KIND = "unknown"
SYNCHRONISING = frozenset(name for name, kind in KINDS.items() if kind.synchronising)
FEEDING = ("allgather", "alltoall")  # the next layer computes with their result, so a rank that waits in them idles
POINT_TO_POINT = frozenset(name for name, kind in KINDS.items() if kind.point_to_point)
EVEN = frozenset(name for name, kind in KINDS.items() if kind.even)
PER_PART = frozenset(name for name, kind in KINDS.items() if kind.per_part)

# Bytes of an element, by torch's scalar type as the profiler writes it (c10/core/ScalarType.h).
_ELEMENT_BYTES = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "ComplexFloat": 8, "ComplexDouble": 16, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1,
    "Float8_e5m2fnuz": 1, "UInt16": 2, "UInt32": 4, "UInt64": 8,
}  # fmt: skip
# C++ names of element types, as operators' `Input type` has them, and torch's scalar types.
_SCALAR_TYPES = {
    "float": "Float", "double": "Double", "c10::Half": "Half", "c10::BFloat16": "BFloat16", "long int": "Long",
    "int": "Int", "short int": "Short", "signed char": "Char", "unsigned char": "Byte", "bool": "Bool",
}  # fmt: skip


@remembered
def is_communication(kernel: str) -> bool:
    """Return whether a kernel's name is one of a communication library."""
    return _KERNEL.search(kernel) is not None


@remembered
def has_shapes(record: str) -> bool:
    """Return whether a CPU record is one of those in which torch writes the shapes of a collective's tensors."""
    return _WITH_SHAPES.match(record) is not None


@remembered
def is_host_collective(record: str) -> bool:
    """Return whether a CPU record is itself a collective, as gloo's are."""
    return _HOST_COLLECTIVE.match(record) is not None


@remembered
def launches_collective(record: str) -> bool:
    """Return whether a CPU record is a backend's annotation around the launch of a communication kernel."""
    return _LAUNCHES_COLLECTIVE.match(record) is not None


@remembered
def is_of_collective(record: str) -> bool:
    """Return whether torch or a backend wrote this CPU record for a collective: it is not compute or a user range."""
    return _OF_COLLECTIVE.match(record) is not None


@remembered
def collective_kind(name: str | None) -> str:
    """Return the collective that a name stands for (`allreduce`, `allgather`, ...), or `unknown`.

    Reads metadata (`_allgather_base`), annotations (`nccl:all_reduce_barrier`, `gloo:all_reduce`) and kernels
    (`ncclKernel_AllReduce_RING_LL_Sum_float`, `ncclDevKernel_ReduceScatter_...`). Prefer metadata if there is any: a
    kernel's name is only a hint.
    """
    text = (name or "").replace("(anonymous namespace)::", "").partition("(")[0].lower()
    return next((word for word, kind in KINDS.items() if kind.pattern.search(text)), UNKNOWN_KIND)


def scalar_type(cpp_name: object) -> str | None:
    """Return torch's scalar type (`Float`, `BFloat16`, ...) for a C++ type name, None if unknown."""
    return _SCALAR_TYPES.get(cpp_name) if isinstance(cpp_name, str) else None


def payload_bytes(kind: str, dtype: str | None, inputs: int | None, outputs: int | None) -> int | None:
    """Return S of nccl-tests (bytes) for one call of `inputs` and `outputs` elements: see `bus_factor`.

    None if the trace does not give the count or an element type of known size.
    """
    size = _ELEMENT_BYTES.get(dtype or "")
    elements = outputs if kind in KINDS and KINDS[kind].payload_of_output else inputs
    return None if size is None or elements is None or elements < 0 else elements * size
