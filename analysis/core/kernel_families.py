"""What a compute kernel does, by its name: one table for all vendors. `None` is an answer: most names say nothing.

The order matters: a kernel belongs to the first family whose pattern its name matches. The families before the matrix
products are there because their names contain those of products (`fbgemm_gpu::`, `triton_poi_fused_addmm`).
test_kernel_families.py has a name of each with its source.
"""

import re
from typing import Literal

from rankscope.analysis.core.name_patterns import remembered

Family = Literal["matmul", "convolution", "attention", "other"]
PRODUCTS = ("matmul", "convolution", "attention")  # what `matmul` stands for in metrics: products of matrices

_FAMILIES: tuple[tuple[Family, re.Pattern[str]], ...] = (
    ("attention", re.compile(r"triton_tem_fused_flex_attention", re.I)),
    ("matmul", re.compile(r"triton_(?:tem_fused_\w*)?(?:mm|bmm|addmm|baddbmm)(?:_|$)")),
    # torch's and Triton's own: the kind of loop is in the name, and so are the operators fused into it
    ("other", re.compile(r"triton_(?:poi|red|per|for)_|elementwise_kernel|reduce_kernel|multi_tensor_apply")),
    ("other", re.compile(r"fbgemm_gpu::|embedding|embs_kernel|EmbeddingBag", re.I)),
    (
        "other",
        re.compile(
            r"(?:rms|layer|batch|group)_?norm|\bbn_(?:fw|bw)|quant(?:ize)?_kernel|nchwTo|nhwcTo|splitKreduce|rope_|rotary|"
            r"act_and_mul|kv_?cache|copy_kernel",
            re.I,
        ),
    ),
    (
        "attention",
        re.compile(
            r"flash(?!infer)|fmha|attn_(?:fwd|bwd)|_attn_|paged_attention|mha_(?:fwd|bwd)|sage_fwd|qk_int8|qk_int_sv|"
            r"Batch(?:Decode|Prefill)With|(?:Single|Ragged)Prefill|attention",
            re.I,
        ),
    ),
    (
        "convolution",
        re.compile(
            r"conv\d?d|convol|_fprop|[dw]grad|winograd|scudnn|[hi]\d*cudnn_\d|igemm_(?:fwd|bwd|wrw)|miopen\w*conv|"
            r"naive_conv|implicitgemmconv|grouped_conv",
            re.I,
        ),
    ),
    (
        "matmul",
        re.compile(r"gemm|gemv|xmma|cutlass|nvjet|Cijk_|matmul|\bmm_kernel|hipblaslt|cublas|tensile|wgmma|hgmma", re.I),
    ),
    (
        "other",
        re.compile(
            r"softmax|transpose|dropout|pool|silu|gelu|adam|cross_entropy|nll|topk|top_k|moe_(?:align|sum)|CatArray|"
            r"index|gather|scatter|RadixSort|cub::|DeviceScan|fill|distribution_|arange|SubTensorOp|OpTensor|clamp|"
            r"GammaBeta|RowwiseMoments|scalePackedTensor|ComputeOffsets|^(?:void )?at::native::",
            re.I,
        ),
    ),
)
_TENSOR = re.compile(
    r"tensorop|tensor\d|s16816|s1688|s884|i16832|h?gmma|wgmma|hmma|imma|qgmma|nvjet|tf32|fp8|e4m3|"
    r"flash(?:_(?:fwd|bwd)|::|Attn)|(?:fmha|attention).*(?:f16|bf16|bfloat16|half|e4m3|sm90|sm100)|"
    r"(?:gemm|xmma|conv|cudnn|dgrad|wgrad|fprop).*(?:bf16|f16f16|fp16)|"
    r"_MI\d+x\d+|xdlops|mfma|wmma|gtcx",  # AMD: Tensile, composable kernels, MIOpen
    re.I,
)
_NO_TENSOR = re.compile(
    r"simt|[sdcz]gemm|gemv|ffma|_scalar_|scudnn|winograd|dgrad_engine<float|wgrad_alg\d_engine<float|gemmSN_|naive_conv|"
    r"(?:conv|gemm)\w*kernel<float",
    re.I,
)
_TELLING = 600  # characters at the beginning of a name, after which only types follow
_NEVER = re.compile(r"simt|[dcz]gemm|gemv|ffma|_scalar_")  # whatever else the name says


@remembered
def family(kernel: str) -> Family | None:
    """Return the family of a compute kernel; None if its name does not tell."""
    head = kernel[:_TELLING]
    return next((name for name, pattern in _FAMILIES if pattern.search(head)), None)


def is_matmul(kernel: str) -> bool:
    """Return whether a kernel's name is that of a matrix product, a convolution or attention."""
    return family(kernel) in PRODUCTS


@remembered
def tensor_cores(kernel: str) -> bool | None:
    """Return whether a product runs on tensor cores (AMD: matrix cores); None if its name does not tell."""
    if not is_matmul(kernel) or _NEVER.search(kernel):
        return False
    if _TENSOR.search(kernel):
        return True
    return False if _NO_TENSOR.search(kernel) else None


def uses_tensor_cores(kernel: str) -> bool:
    """Return whether a kernel's name is that of a product that runs on tensor cores."""
    return tensor_cores(kernel) is True
