"""What to do about each finding, and the overrides with which `rankscope run` tries it."""

WORKERS = 4  # of a rank's loader, as advised where there are cores for as many

# finding: (advice, overrides to try)
ADVICE: dict[str, tuple[str, tuple[str, ...]]] = {
    "data_stall": (
        "the device waits for batches: more loader workers, a larger data.prefetch_factor, or cheaper decoding",
        (f"num_workers={WORKERS}",),
    ),
    "data_stall_busy": (
        "the device waits for batches, which the loader computes on the rank's own core: workers, or cheaper decoding",
        (f"num_workers={WORKERS}",),
    ),
    "data_stall_idle": (
        "the device waits for batches, and the loader for something else (its storage, its workers): more workers, a "
        "larger data.prefetch_factor, faster storage",
        (f"num_workers={WORKERS}",),
    ),
    "data_stall_no_cores": (
        "the device waits for batches, and the loader computes all that time on a host with no core to spare: cheaper "
        "decoding or prepared samples; workers would take cores from the ranks",
        (),
    ),
    "first_batch": (
        "the loader's workers start again in every epoch: keep them, or make epochs longer",
        (f"num_workers={WORKERS}", "data.persistent_workers=true"),
    ),
    "copy_bound": (
        "the device waits for copies: pinned memory and copies that the host does not wait for",
        ("data.pin_memory=true", "data.non_blocking=true"),
    ),
    "copy_bound_to_host": (
        "the device waits for copies to the host inside the step: keep results on the device, or copy them less often",
        (),
    ),
    "host_bound_launch": (
        "kernels are shorter than the time to launch them: CUDA graphs, or a larger batch",
        ("compile=reduce-overhead",),
    ),
    "host_bound_launch_ddp": (
        "kernels are shorter than the time to launch them: CUDA graphs (under DDP some releases of PyTorch crash with "
        "them: its issue 113809), or a larger batch",
        ("compile=reduce-overhead",),
    ),
    "host_gap": (
        "the device waits for launches: a larger batch, compilation, or less Python in the loop",
        ("compile=reduce-overhead",),
    ),
    "host_gap_cpu": ("nothing computes while Python runs between operators: a larger batch, or compilation", ()),
    "sync_in_loop": ("the host waits for the device inside the step: take these calls out of the loop", ()),
    "sync_of_ddp": (
        "DDP reads its own timers in the first ten steps of a job, and waits for the device: record later steps",
        ("profile.wait=9",),
    ),
    "small_kernels": (
        "many short kernels: fuse them (compilation, a fused optimizer), or a larger batch",
        ("compile=default", "optimizer.impl=fused"),
    ),
    "straggler_compute": (
        "this rank computes longer: compare its batches' sizes, clocks, temperature and neighbours",
        (),
    ),
    "straggler_data": (
        "this rank's loader is slower: look at its workers, its storage, its share of the CPU",
        (f"num_workers={WORKERS}",),
    ),
    "straggler_host": (
        "this rank launches later: look at its CPU, at synchronising calls and at garbage collection (gc.freeze)",
        (),
    ),
    "straggler_copy": (
        "this rank's copies take longer: look at pinning and at the path between its CPU and GPU",
        ("data.pin_memory=true",),
    ),
    "straggler_earlier_comm": ("collectives of another group hold this rank up: see which group is slow", ()),
    "straggler_mixed": ("this rank is late for several reasons: see the shares", ()),
    "unconfirmed": ("the plain pass does not show it: profiling slows this rank's host; nothing to fix", ()),
    "exposed_comm": (
        "gradients are reduced while nothing computes: a larger batch, gradient accumulation, or compressed gradients",
        ("ddp.comm_hook=bf16",),
    ),
    "no_overlap": (
        "gradients are reduced only when the backward pass is over: smaller buckets let the first ones go earlier",
        ("ddp.bucket_cap_mb=25",),
    ),
    "no_overlap_cpu": (
        "gradients are reduced only when the backward pass is over; what hiding it would bring on a CPU is not known, "
        "since an all-reduce takes the cores that compute",
        ("ddp.bucket_cap_mb=25",),
    ),
    "large_last_bucket": (
        "the last bucket holds most of the gradients, and nothing hides it: smaller buckets",
        ("ddp.bucket_cap_mb=25",),
    ),
    "small_buckets": (
        "many small all-reduces, each of which costs its latency: larger buckets",
        ("ddp.bucket_cap_mb=25",),
    ),
    "sync_every_micro_step": (
        "gradients are reduced in every micro-step: only the last needs it (no_sync)",
        ("ddp.no_sync=true",),
    ),
    "unused_parameters_scan": (
        "DDP walks the graph for unused parameters in every step: turn it off where every parameter is used",
        ("ddp.find_unused_parameters=false",),
    ),
    "low_tensor_core_use": (
        "matrix products run without tensor cores: bf16, or at least TF32",
        ("precision=bf16",),
    ),
    "memory_bound": (
        "the device's memory sets the pace: fuse element-wise work (compilation, a fused optimizer), a larger batch",
        ("compile=default", "optimizer.impl=fused"),
    ),
    "compute_bound": (
        "matrix products set the pace, as they should: only lower precision or less arithmetic makes it faster",
        (),
    ),
    "memory_pressure": (
        "memory is asked from the driver inside the step: no empty_cache() in the loop, a smaller batch, or "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        (),
    ),
    "profiler_distorts": (
        "the traced step is no picture of the plain one: record device activities only, or use Nsight Systems",
        ("profile=light",),
    ),
    "profiler_distorts_both": (
        "the traced step is no picture of the plain one, nor is that of device activities alone: use Nsight Systems",
        ("passes=[plain,nsys]",),
    ),
    "profiler_distorts_cpu": ("the traced step is no picture of the plain one: it is too short for a profiler", ()),
    "throttled": (
        "this rank's GPU runs at lower clocks: look at its power cap, its temperature and its neighbours",
        (),
    ),
}
