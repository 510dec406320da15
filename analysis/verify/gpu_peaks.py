"""Dense peak arithmetic rates of GPUs, for MFU; from the vendors' data sheets, without sparsity."""

# TFLOP/s by (part of the device's name, arithmetic). More specific names come first.
_PEAKS: tuple[tuple[str, dict[str, float]], ...] = (
    ("H100 PCIe", {"bf16": 756.5, "fp16": 756.5, "tf32": 378.0, "fp32": 51.2}),
    ("H100 NVL", {"bf16": 835.5, "fp16": 835.5, "tf32": 417.5, "fp32": 60.0}),
    ("H100", {"bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 66.9}),
    ("H200", {"bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 66.9}),
    ("A100", {"bf16": 312.0, "fp16": 312.0, "tf32": 156.0, "fp32": 19.5}),
    ("V100", {"fp16": 125.0, "fp32": 15.7}),
    ("L40S", {"bf16": 362.0, "fp16": 362.0, "tf32": 183.0, "fp32": 91.6}),
    ("L4", {"bf16": 121.0, "fp16": 121.0, "tf32": 60.0, "fp32": 30.3}),
    ("A10G", {"bf16": 70.0, "fp16": 70.0, "tf32": 35.0, "fp32": 31.2}),
)


def dense_peak_flops(device: str | None, arithmetic: str) -> float | None:
    """Return the dense peak (FLOP/s) of a device for fp32, tf32, bf16 or fp16; None if unknown."""
    for part, rates in _PEAKS:
        if device is not None and part in device:
            rate = rates.get(arithmetic)
            return None if rate is None else rate * 1e12
    return None
