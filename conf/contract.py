"""What launch, harness and analysis must agree on: exit statuses, passes, names of ranges, columns of steps.parquet.

None of the three imports another. A word that two of them use stands here, once.
"""

import signal
from typing import Any, Literal, get_args

# --- exit statuses ------------------------------------------------------------------------------------------------

OK = 0
NO_NUMBERS = 2  # refused, or failed without numbers; 1 is a bug, as Python exits after a traceback
PARTIAL = 3  # some ranks, steps or points are missing
GATE = 4  # `rankscope compare`: a metric is worse than its gate allows
INTERRUPTED = 130  # by Ctrl-C


def signal_status(number: int) -> int:
    """Return the exit status of a process that a signal ended, as a shell gives it."""
    return 128 + number


# --- passes -------------------------------------------------------------------------------------------------------

PassName = Literal["plain", "timed", "torch", "detail", "light", "nsys"]
PASSES: tuple[PassName, ...] = get_args(PassName)  # the least disturbed pass first: readers take the first that exists
# By torch.profiler: detail adds shapes, memory and FLOPs, light records device activities only.
TORCH_PASSES: tuple[PassName, ...] = ("torch", "detail", "light")
# The windows of one process, in an order in which none disturbs a later one whose times count.
WINDOWS: tuple[PassName, ...] = ("plain", "timed", "torch", "detail")

# What a step of a pass is for.
Phase = Literal["warmup", "measured", "wait", "active"]
COUNTED: tuple[Phase, ...] = ("measured", "active")  # in the plain pass, in the others

# Where a rank is, in progress.json, in the order in which it gets there.
# `done`: its files are written; `ended`: the job's own code has ended, too.
Stage = Literal["setup", "turn", "warmup", "measure", "export", "done", "ended"]
STAGES: tuple[Stage, ...] = get_args(Stage)
EXPORT: Stage = "export"  # writes what torch.profiler recorded
TURN: Stage = "turn"  # waits until other runs on this host have measured

ENDED: Stage = "ended"
RECORDED: tuple[Stage, ...] = ("done", ENDED)
STACKS = signal.SIGRTMAX - 2  # makes a rank write the Python stacks of its threads
DUMP = signal.SIGRTMAX - 3  # makes a rank write torch's record of its collectives

# Ends of a rank's note about a skipped timed window if nobody can mend it.
NO_COLLECTIVES, NO_RECORDER = "there are no collectives", "has no recorder of its collectives"

# The variable with the folder for the sockets of a rank's worker processes. The launcher removes it with the run.
SOCKETS = "RANKSCOPE_SOCKETS"

# `python -m rankscope.harness SCRIPT` watches a script if the first is set: to a folder, or to 1 for ./runs. The second
# says which calls end a step: optimizer or loader.
LISTEN, LISTEN_STEPS = "RANKSCOPE_LISTEN", "RANKSCOPE_LISTEN_STEPS"

# NCCL's Flight Recorder: the variable that sizes its buffer, in newer and in older releases of torch.
RECORDER_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
RECORDER_ENTRIES = 20_000

# --- names of ranges ----------------------------------------------------------------------------------------------

RangeName = Literal["data_wait", "h2d", "forward", "backward", "optimizer"]
RANGES: tuple[RangeName, ...] = get_args(RangeName)  # the parts of a step
DATA_WAIT: RangeName = "data_wait"
DEVICE_RANGES: tuple[RangeName, ...] = RANGES[1:]  # timed by the device's clock on a GPU
STEP_RANGE = "step_"  # NVTX range of a step, before its number
CAPTURE = "rankscope"  # NVTX range around the steps that Nsight Systems records on a CPU
MODULE_PREFIX = "module: "  # range of a module of `profile.modules`, before its name
DOCTOR_RANGE = "rankscope_doctor"  # NVTX range by which `rankscope doctor` tests nsys

# --- steps.parquet ------------------------------------------------------------------------------------------------

GpuColumn = Literal[
    "gpu_clock_mhz", "gpu_power_w", "gpu_temperature_c", "gpu_utilization", "gpu_throttle_reasons", "pcie_tx_MBs",
    "pcie_rx_MBs", "nvlink_tx_MBs", "nvlink_rx_MBs",
]  # fmt: skip
GPU_COLUMNS: tuple[GpuColumn, ...] = get_args(GpuColumn)
StepColumn = Literal[
    "step", "phase", "start_ns", "host_ns", "device_ns", "cpu_ns", "core_wait_ns", "data_wait_ns", "data_cpu_ns",
    "h2d_ns", "forward_ns", "backward_ns", "backward_compute_ns", "optimizer_ns", "forward_host_ns",
    "backward_host_ns", "optimizer_host_ns", "host_ahead", "launch_ns", "first_of_epoch", "loss",
    "memory_allocated_bytes", "memory_reserved_bytes", "memory_peak_bytes", GpuColumn,
]  # fmt: skip
StepRow = dict[StepColumn, Any]  # one step of one rank
RANGE_COLUMNS: dict[RangeName, StepColumn] = {
    "data_wait": "data_wait_ns",
    "h2d": "h2d_ns",
    "forward": "forward_ns",
    "backward": "backward_ns",
    "optimizer": "optimizer_ns",
}
BACKWARD_COMPUTE: StepColumn = "backward_compute_ns"  # until the rank's own gradients are computed
HOST_RANGE_COLUMNS: dict[RangeName, StepColumn] = {
    "forward": "forward_host_ns",
    "backward": "backward_host_ns",
    "optimizer": "optimizer_host_ns",
}
_NO_INTEGERS: dict[StepColumn, type] = {
    "phase": str,
    "host_ahead": bool,
    "first_of_epoch": bool,
    "loss": float,
    **{name: float for name in GPU_COLUMNS if name != "gpu_throttle_reasons"},
}
STEP_COLUMNS: dict[StepColumn, type] = {name: _NO_INTEGERS.get(name, int) for name in get_args(StepColumn)}

KEY_AVERAGES: dict[str, type] = {
    "name": str,
    "count": int,
    "self_cpu_ns": int,
    "cpu_ns": int,
    "self_device_ns": int,
    "device_ns": int,
    "self_cpu_memory_bytes": int,
    "self_device_memory_bytes": int,
    "flops": int,
    "input_shapes": str,
}

# --- bandwidth of collectives -------------------------------------------------------------------------------------


def bus_factor(kind: str, ranks: int) -> float:
    """Return busbw / algbw as nccl-tests defines it (its doc/PERFORMANCE.md), for a group of `ranks`.

    S is one rank's bytes for all-reduce, total output for all-gather, total input for reduce-scatter and all-to-all.
    """
    if kind == "allreduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("reducescatter", "allgather", "alltoall"):
        return (ranks - 1) / ranks
    return 1.0
