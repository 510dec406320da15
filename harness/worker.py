"""One rank from its configuration to its exit: in, the run folder and the pass; out, the files of this rank.

Whatever stops the rank, the steps it recorded are kept and rank.json says what happened; the error goes on to torchrun.
"""

import hashlib
import logging
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from rankscope.conf.files import write_json
from rankscope.conf.run_dir import RankDir, RunDir
from rankscope.conf.schema import RunConfig, load_config
from rankscope.harness import clock
from rankscope.harness.data import make_batches
from rankscope.harness.faults import Fault
from rankscope.harness.process_group import RankContext, die_with_parent, join, leave
from rankscope.harness.profiler import StepProfiler
from rankscope.harness.progress import Progress
from rankscope.harness.ranges import Ranges
from rankscope.harness.schedule import Phase, phases
from rankscope.harness.step_timer import StepTimer
from rankscope.harness.trainer import Trainer

log = logging.getLogger(__name__)


@record
def main(arguments: list[str]) -> None:
    """Run the rank that torchrun's environment names; `arguments` are the run folder and the pass."""
    path, pass_name = arguments
    run_dir = RunDir(Path(path))
    rank_dir = run_dir.for_pass(pass_name).rank(int(os.environ.get("RANK", "0")))
    rank_dir.path.mkdir(parents=True, exist_ok=True)
    die_with_parent()
    log_to(rank_dir)
    worker = Worker(run_dir, pass_name, rank_dir)
    try:
        worker.run()
    except BaseException as error:  # a boundary: every end of a rank is recorded, and goes on to torchrun
        log.exception("rank %d failed", rank_dir.rank)
        worker.save(error)
        raise
    worker.save()


def log_to(rank_dir: RankDir) -> None:
    """Log this rank's own lines into its folder."""
    handler = logging.FileHandler(rank_dir.log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("rankscope")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


@dataclass
class Worker:
    """One rank in one pass, and what is known of it so far."""

    run_dir: RunDir
    pass_name: str
    rank_dir: RankDir
    info: dict[str, Any] = field(default_factory=dict)
    timer: StepTimer | None = None
    profiler: StepProfiler | None = None

    def run(self) -> None:
        """Do the whole work of the rank."""
        config = load_config(self.run_dir.config)
        plan = phases(config, self.pass_name)
        progress = Progress(self.rank_dir, of=len(plan))
        progress.update("setup", 0)
        context = join(config)
        self.info |= describe(context, self.pass_name, self.run_dir)
        fault = Fault(config, context)
        trainer = Trainer(config, context)
        self.info |= {"parameters": trainer.model.parameters, "flops_per_sample": trainer.model.flops_per_sample}
        batches = make_batches(config, context, trainer.model.sample)
        self.timer = StepTimer(context.device)
        if self.pass_name == "torch":
            keys = ("rank", "host", "boot_id", "config_hash")
            metadata = {f"rankscope_{key}": self.info[key] for key in keys}
            self.profiler = StepProfiler(
                config.profile, context, self.rank_dir, metadata, keep_trace=not fault.drops_trace
            )
        self.info["clock_probes"] = [clock.probe(context, "before").to_json()]
        self._loop(plan, config, context, trainer, batches, fault, progress)
        progress.enter("export")
        context.synchronize()
        self.info["clock_probes"].append(clock.probe(context, "after").to_json())
        batches.close()
        leave(context)
        progress.update("done", len(plan))
        progress.close()

    def _loop(
        self,
        plan: list[Phase],
        config: RunConfig,
        context: RankContext,
        trainer: Trainer,
        batches: Any,
        fault: Fault,
        progress: Progress,
    ) -> None:
        timer, profiler = self.timer, self.profiler
        assert timer is not None  # made just before
        ranges = Ranges(timer, annotate=profiler is not None, nvtx=context.cuda)
        context.barrier()
        if profiler:
            profiler.start()
        try:
            for step, phase in enumerate(plan):
                timer.begin(step, phase)
                fault.at_step(step)
                trainer.step(batches, ranges, timer, fault, read_loss=step % config.log_every == 0)
                timer.end()
                progress.update("measure" if phase in ("measured", "active") else "warmup", step + 1)
                if profiler:
                    if profiler.pauses_after(step):
                        timer.close()
                    profiler.step()
            timer.close()
        except BaseException:
            if profiler:
                profiler.abort()
            raise
        if profiler:
            profiler.stop()

    def save(self, error: BaseException | None = None) -> None:
        """Write steps.parquet and rank.json with what there is."""
        steps = self.timer.write(self.rank_dir.steps) if self.timer else 0
        peaks = [row["memory_peak_bytes"] for row in self.timer.rows()] if self.timer else []
        self.info |= {
            "memory_peak_bytes": max((peak for peak in peaks if peak is not None), default=None),
            "steps": steps,
            "traces": self.profiler.traces if self.profiler else [],
            "status": "ok" if error is None else "failed",
            "error": None if error is None else one_line(error),
        }
        write_json(self.rank_dir.info, self.info)


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
        "device_uuid": str(properties.uuid) if hasattr(properties, "uuid") else None,
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
