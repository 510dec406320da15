"""Names of kernels and collectives as NCCL, RCCL and torch have written them over the years, and what they imply."""

import pytest

from rankscope.analysis.core.collective_kinds import (
    EVEN,
    PER_PART,
    POINT_TO_POINT,
    SYNCHRONISING,
    collective_kind,
    is_communication,
    is_host_collective,
    is_of_collective,
    launches_collective,
    payload_bytes,
    scalar_type,
)
from rankscope.conf.contract import bus_factor

KERNELS = {
    # DeepEP, torch's symmetric memory, custom all-reduces of vLLM and SGLang, TensorRT-LLM: their sources
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)": "alltoall",
    "void deep_ep::internode::combine<false, 4>(int4*)": "alltoall",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 8>(long)": "allreduce",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": "allreduce",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<>": "allreduce",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16, 4, true, false>(AllReduceParams)": "allreduce",
    "void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)4, __nv_bfloat16>()": "allreduce",
    "void userbuffers_fp16_sum_inplace_gpu_rr_ag<8>(int, int)": "allgather",  # Transformer Engine
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int, int)": "reducescatter",
    "kuserbuffers_pushsend(int*, int*, int4*)": "send",
    "void aiter::allgather_lastdim<__hip_bfloat16, 8>(aiter::RankData*)": "allgather",
    "void quickreduce::allreduce_prototype_twoshot<quickreduce::CodecFP>(char const*)": "allreduce",
    "c10d::nvshmem_extension::allToAllV(void*, void*, long*)": "alltoall",  # torch's symmetric memory on NVSHMEM
    "ncclAllReduceRingLLKernel_sum_f32(ncclWorkElem)": "allreduce",  # NCCL 2.8
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "allreduce",  # 2.12 to 2.17
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "allreduce",  # 2.19 and later
    "void ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)": "broadcast",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reducescatter",
    "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)": "allgather",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "sendrecv",
    "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce",
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)": "unknown",  # RCCL names no collective
    "ncclSymDevKernel_AllReduce_RSxLD_AGxST(ncclSymDevArgs)": "allreduce",
    "void rcclKernel_AllGather(rcclComm*)": "allgather",
    "mscclKernel_Sum_float_LL_true(ncclDevComm*)": "unknown",
}
OTHERS = [
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(at::native::ReduceOp<float>)",
    "triton_poi_fused_gather_0",
    "void my_nccl_like_kernel(float*)",
    "void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<__nv_bfloat16>(float*)",
]


@pytest.mark.parametrize(("name", "kind"), KERNELS.items())
def test_communication_kernels(name: str, kind: str) -> None:
    assert is_communication(name) and collective_kind(name) == kind


@pytest.mark.parametrize("name", OTHERS)
def test_other_kernels(name: str) -> None:
    assert not is_communication(name)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", "allreduce"), ("allreduce_coalesced", "allreduce"), ("nccl:all_reduce", "allreduce"),
        ("nccl:all_reduce_barrier", "barrier"), ("barrier", "barrier"), ("_allgather_base", "allgather"),
        ("nccl:_all_gather_base", "allgather"), ("_reduce_scatter_base", "reducescatter"),
        ("reduce_scatter_tensor_coalesced", "reducescatter"), ("all_to_allv", "alltoall"), ("alltoall", "alltoall"),
        ("broadcast", "broadcast"), ("send", "send"), ("recv", "recv"), ("nccl:send 0->1", "send"),
        ("gloo:all_reduce", "allreduce"), ("gather", "gather"), ("scatter", "scatter"), ("reduce", "reduce"),
        (None, "unknown"), ("nccl:coalesced", "unknown"),
    ],
)  # fmt: skip
def test_collectives(name: str | None, kind: str) -> None:
    assert collective_kind(name) == kind


def test_bus_bandwidth_as_in_nccl_tests() -> None:
    """doc/PERFORMANCE.md of nccl-tests: all-reduce 2(n-1)/n, the one-sided halves (n-1)/n, broadcast 1."""
    assert [bus_factor("allreduce", n) for n in (2, 4, 8)] == [1.0, 1.5, 1.75]
    assert bus_factor("allgather", 4) == bus_factor("reducescatter", 4) == 0.75
    assert bus_factor("broadcast", 4) == 1.0
    assert payload_bytes("allgather", "BFloat16", 10, 40) == 80
    assert payload_bytes("reducescatter", "Float", 40, 10) == 160
    assert payload_bytes("allreduce", "Unheard", 1, 1) is None
    assert payload_bytes("allreduce", scalar_type("c10::BFloat16"), 10, 10) == 20
    assert scalar_type("std::string") is None


@pytest.mark.parametrize(
    ("record", "is_collective", "launches", "is_of"),
    [
        ("gloo:all_reduce", True, False, True),
        ("mpi:broadcast", True, False, True),
        ("ucc:allreduce", True, False, True),
        ("xccl:all_reduce", True, False, True),
        ("nccl:all_reduce", False, True, True),
        ("c10d::allreduce_", False, False, True),
        ("record_param_comms", False, False, True),
        ("aten::add_", False, False, False),
        ("my gloo: part", False, False, False),
    ],
)
def test_records_on_the_cpu(record: str, is_collective: bool, launches: bool, is_of: bool) -> None:
    assert is_host_collective(record) == is_collective
    assert launches_collective(record) == launches
    assert is_of_collective(record) == is_of


def test_what_kinds_imply() -> None:
    assert SYNCHRONISING == {"allreduce", "reducescatter", "allgather", "alltoall", "barrier"}
    assert POINT_TO_POINT == {"send", "recv", "sendrecv"}
    assert EVEN == {"allreduce", "allgather", "reducescatter", "broadcast", "reduce"}
    assert PER_PART == {"allgather", "reducescatter", "alltoall"}
