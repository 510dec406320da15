"""One rank from its configuration to its exit: in, the run folder and the pass; out, the files of this rank.

Whatever stops the rank, the steps it recorded are kept and rank.json says what happened; the error goes on to
torchrun.
"""

import hashlib
import logging
import os
import platform
import threading
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DDP imports it, which takes seconds: here, where nobody waits for this rank's turn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate

from rankscope.conf.files import write_json
from rankscope.conf.run_dir import RankDir, RunDir
from rankscope.conf.schema import TORCH_PASSES, RunConfig, load_config
from rankscope.harness import clock
from rankscope.harness.capture import Capture
from rankscope.harness.data import make_batches
from rankscope.harness.faults import Faults
from rankscope.harness.forward import Evaluator, Server
from rankscope.harness.gpu_state import GpuState
from rankscope.harness.interrupt import saving
from rankscope.harness.loop import Loop, Task
from rankscope.harness.modules import ModuleRanges
from rankscope.harness.nvtx_ranges import Emitter, TorchEmitter, under_nsys
from rankscope.harness.process_group import RankContext, die_with_parent, join, leave
from rankscope.harness.profiler import StepProfiler, light
from rankscope.harness.progress import Progress, reporting
from rankscope.harness.ranges import Ranges
from rankscope.harness.replica import Replica, bucket_bytes
from rankscope.harness.schedule import Phase, phases
from rankscope.harness.step_timer import StepTimer, write_steps
from rankscope.harness.trainer import Trainer
from rankscope.harness.turn import turn

log = logging.getLogger(__name__)


@record
def main(arguments: list[str]) -> None:
    """Run the rank that torchrun's environment names; `arguments` are the run folder and the pass."""
    path, pass_name = arguments
    run_dir = RunDir(Path(path))
    rank_dir = run_dir.for_pass(pass_name).rank(int(os.environ.get("RANK", "0")))
    if "RANKSCOPE_UMASK" in os.environ:  # nsys clears it, which would let everybody write the rank's files
        os.umask(int(os.environ["RANKSCOPE_UMASK"], 8))
    rank_dir.path.mkdir(parents=True, exist_ok=True)
    if not under_nsys():  # there launch/shield.py stands for the parent, which is a short-lived helper of nsys
        die_with_parent()
    log_to(rank_dir)
    worker = Worker(run_dir, pass_name, rank_dir)
    with saving(worker.save):
        try:
            worker.run()
        except BaseException as error:  # a boundary: every end of a rank is recorded, and goes on to torchrun
            log.exception("rank %d failed", rank_dir.rank)
            worker.save(one_line(error))
            raise
        worker.save()


def log_to(rank_dir: RankDir) -> None:
    """Log this rank's own lines into its folder."""
    handler = logging.FileHandler(rank_dir.log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("rankscope")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


class Worker:
    """One rank in one pass, and what is known of it so far."""

    def __init__(self, run_dir: RunDir, pass_name: str, rank_dir: RankDir) -> None:
        self._run_dir = run_dir
        self._pass_dir = run_dir.for_pass(pass_name)
        self._pass_name = self._pass_dir.kind  # a repeat records what the pass does
        self._rank_dir = rank_dir
        self._info: dict[str, Any] = {"rank": rank_dir.rank, "pid": os.getpid(), "pass": pass_name}
        self._timer: StepTimer | None = None
        self._profiler: StepProfiler | Capture | None = None
        self._gpu: GpuState | None = None
        self._modules: ModuleRanges | None = None
        self._ddp: DistributedDataParallel | None = None
        self._saving = threading.Lock()
        self._saved = False

    def run(self) -> None:
        """Do the whole work of the rank."""
        config = load_config(self._run_dir.config)
        plan = phases(config, self._pass_name)
        with (
            reporting(self._rank_dir, of=len(plan)) as progress,
            turn(config.launch.turn, self._pass_dir, self._rank_dir.rank),
        ):
            context = join(config)
            self._info |= describe(context, self._pass_name, self._run_dir)
            log.info("rank %d of %d on %s", context.rank, context.world_size, context.device)
            loop = self._prepare(config, plan, context, progress)
            probes = self._info["clock_probes"] = [clock.probe(context, "before").to_json()]
            self._gpu = GpuState(context, self._info["device_uuid"])
            self._gpu.start()
            loop.run()
            # not when saving: DDP answers only when it is not inside a collective
            self._info["bucket_bytes"] = None if self._ddp is None else bucket_bytes(self._ddp)
            progress.enter("export")
            context.synchronize()
            probes.append(clock.probe(context, "after").to_json())
            loop.batches.close()
            leave(context)
            progress.enter("done")

    def save(self, error: str | None = None) -> None:
        """Write steps.parquet and rank.json with what there is; of two calls, from two threads, the first counts."""
        with self._saving:
            if not self._saved:
                self._save(error)
            self._saved = True

    def _save(self, error: str | None) -> None:
        rows = self._timer.rows() if self._timer else []
        if self._gpu is not None:
            self._gpu.stop()
            rows = [row | self._gpu.during(row["start_ns"], row["start_ns"] + (row["host_ns"] or 0)) for row in rows]
        peaks = [row["memory_peak_bytes"] for row in rows if row["memory_peak_bytes"] is not None]
        self._info |= {
            "memory_peak_bytes": max(peaks, default=None),
            "steps": len(rows),
            "module_memory_bytes": self._modules.memory if self._modules and self._modules.memory else None,
            "traces": self._profiler.traces if self._profiler else [],
            "status": "ok" if error is None else "failed",
            "error": error,
        }
        write_steps(rows, self._rank_dir.steps)
        write_json(self._rank_dir.info, self._info)

    def _prepare(self, config: RunConfig, plan: list[Phase], context: RankContext, progress: Progress) -> Loop:
        """Build everything that the loop needs."""
        replica = Replica(config, context)
        faults = Faults(config, context)  # after the replica, which sets the arithmetic: some are measured here
        faults.attach(replica.raw)
        self._info |= {"parameters": replica.model.parameters, "flops_per_sample": replica.flops_per_sample}
        self._timer = StepTimer(context.device)
        if self._pass_name in TORCH_PASSES:
            keys = ("rank", "host", "boot_id", "config_hash")
            metadata = {f"rankscope_{key}": self._info[key] for key in keys}
            profile = config.profile if self._pass_name == "torch" else light(config.profile)
            self._profiler = StepProfiler(profile, context, self._rank_dir, metadata, keep_trace=not faults.drops_trace)
        elif self._pass_name == "nsys":
            self._profiler = Capture(config.profile, context, profiled=under_nsys())
        nvtx = _emitter_of(self._profiler, context)
        if config.profile.modules and self._profiler is not None:
            annotate = self._pass_name == "torch"
            self._modules = ModuleRanges(
                config.profile.modules, replica.raw, annotate=annotate, nvtx=nvtx, cuda=context.cuda
            )
        self._ddp = replica.ddp
        return Loop(
            plan=plan,
            context=context,
            task=_task(config, context, replica),
            batches=make_batches(
                config, context, replica.model.sample, faults.slow_collate(default_collate), faults.slow_dataset
            ),
            timer=self._timer,
            ranges=Ranges(self._timer, annotate=self._pass_name == "torch", nvtx=nvtx),
            profiler=self._profiler,
            faults=faults,
            progress=progress,
            log_every=config.log_every,
        )


def _task(config: RunConfig, context: RankContext, replica: Replica) -> Task:
    if config.mode == "train":
        return Trainer(config, context, replica)
    return Evaluator(context, replica) if config.mode == "eval" else Server(context, replica)


def _emitter_of(profiler: StepProfiler | Capture | None, context: RankContext) -> Emitter | None:
    """Return what opens NVTX ranges: on a GPU in every pass, on a CPU where Nsight Systems listens."""
    if isinstance(profiler, Capture):
        return profiler.emitter
    return TorchEmitter() if context.cuda else None


def one_line(error: BaseException) -> str:
    """Return the error's type and the first line of what it says."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def describe(context: RankContext, pass_name: str, run_dir: RunDir) -> dict[str, Any]:
    """Return who this rank is, as it stands in rank.json."""
    properties: Any = torch.cuda.get_device_properties(context.device) if context.cuda else None
    return {
        "rank": context.rank,
        "local_rank": context.local_rank,
        "world_size": context.world_size,
        "host": context.host,
        "boot_id": context.boot_id,
        "pid": os.getpid(),
        "device": str(context.device),
        "device_name": properties.name if properties else None,
        "device_uuid": f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else None,  # as nvidia-smi writes it
        "backend": context.backend,
        "pass": pass_name,
        "config_hash": hashlib.sha256(run_dir.config.read_bytes()).hexdigest(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if context.cuda else None,
        "threads": torch.get_num_threads(),
        "affinity": sorted(os.sched_getaffinity(0)),
    }
