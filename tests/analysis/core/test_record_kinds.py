"""Categories and runtime calls as profilers write them."""

from rankscope.analysis.core.record_kinds import is_launch, part_of


def test_launching_calls() -> None:
    launching = [
        "cudaLaunchKernel",
        "cuLaunchKernelEx",
        "cudaGraphLaunch",
        "hipExtModuleLaunchKernel",
        "cudaMemcpyAsync",
    ]
    assert all(map(is_launch, launching))
    assert not any(map(is_launch, ["cudaDeviceSynchronize", "cudaEventRecord", "cudaStreamIsCapturing"]))


def test_tables_of_categories() -> None:
    assert [part_of(name) for name in ("kernel", "gpu_memcpy", "gpu_memset")] == ["device"] * 3
    assert [part_of(name) for name in ("cuda_runtime", "cuda_driver")] == ["launches"] * 2
    assert [part_of(name) for name in ("cpu_op", "user_annotation")] == ["host"] * 2
    assert [part_of(name) for name in ("gpu_user_annotation", "python_function", "cuda_sync", None)] == [None] * 4
