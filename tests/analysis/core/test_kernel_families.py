"""Kernel names as recorded, with the source of each: what they do, and whether on tensor cores."""

import pytest

from rankscope.analysis.core.kernel_families import Family, family, tensor_cores

NAMES: list[tuple[str, Family | None, bool | None]] = [
    # MI300X: TraceLens tests/traces/mi300 and inference/xdit_flux.1
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x192x64_MI16x16x1_SN_LDSB1", "matmul", True),
    ("attn_fwd", "attention", None),
    ("sage_fwd", "attention", None),
    ("sage_quant_kernel", "other", False),
    ("_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weight", "matmul", True),
    ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8", "convolution", True),
    ("batched_transpose_16x32_half", "other", False),
    ("triton_poi_fused__scaled_dot_product_flash_attention_cat_3", "other", False),
    ("triton_red_fused__to_copy_add_addmm_div_mean_mul_neg_31", "other", False),
    # B300: SGLang, DeepSeek R1
    ("nvjet_sm103_tst_64x16_64x16_4x1_v_bz_TNT", "matmul", True),
    ("fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP64VarSeqQ8Kv128", "attention", True),
    ("kernel_cutlass_kernel_flashinfernormkernelsrmsnormRMSNormKernel_object_at_", "other", False),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>", "other", False),
    # V100 and RTX 2080 Ti: param resnet_kineto, kineto tb_plugin/samples
    ("volta_sgemm_64x64_nt", "matmul", False),
    ("volta_scudnn_128x64_stridedB_splitK_xregs_large_nn_v1", "convolution", False),
    ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int)", "convolution", False),
    ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float)", "other", False),
    # A100: HTA timeline_analysis, nccl_parser_config
    ("void fbgemm_gpu::permute_2D_data_kernel<false, int, int, decltype(nullptr)>(int)", "other", False),
    ("void split_embedding_codegen_forward_unweighted_kernel<c10::Half, c10::Half>", "other", False),
    ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1>", "matmul", True),
    # H800: DeepSeek profile-data: FP8 and FlashAttention-3
    ("void deep_gemm::fp8_gemm_kernel<7168u, 2048u, 128u, 128u>", "matmul", True),
    ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<...>>>", "attention", True),
    ("alloc_decode_kernel", None, False),
    ("my_own_kernel", None, False),
]


@pytest.mark.parametrize(("name", "wanted", "tensor"), NAMES, ids=[name[:30] for name, _, _ in NAMES])
def test_family(name: str, wanted: Family | None, tensor: bool | None) -> None:
    assert (family(name), tensor_cores(name)) == (wanted, tensor)
