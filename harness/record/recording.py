"""Records one rank in one pass: the run folder and the name of the pass in, the files of the rank out.

It records the reference model and user scripts in the same way. Whatever stops the rank, the recorded steps are kept
and rank.json has the reason.
"""

import hashlib
import logging
import os
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch

from rankscope.conf.contract import TORCH_PASSES, Phase
from rankscope.conf.files import write_json
from rankscope.conf.run_dir import RankDir, RunDir
from rankscope.conf.schema import RunConfig, load_config
from rankscope.harness.group import clock_probes
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.record.gpu_state import GpuState
from rankscope.harness.record.nsys_capture import Capture
from rankscope.harness.record.nvtx import Emitter, TorchEmitter, under_nsys
from rankscope.harness.record.progress import Progress
from rankscope.harness.record.ranges import Ranges
from rankscope.harness.record.schedule import phases
from rankscope.harness.record.step_timer import StepTimer, write_steps
from rankscope.harness.record.steps import Steps
from rankscope.harness.record.torch_profiler import StepProfiler, light
from rankscope.harness.record.turn import Turn

_TRACE_S = 10.0  # how long a signal waits for a trace; less than launch.grace_s and torchrun's own 30 s
log = logging.getLogger(__name__)


class Recording:
    """One rank in one pass; `info` becomes rank.json."""

    def __init__(self, run_dir: RunDir, pass_name: str, rank_dir: RankDir) -> None:
        self.run_dir = run_dir
        self.rank_dir = rank_dir
        self.pass_name = pass_name
        self.pass_dir = run_dir.for_pass(pass_name)
        self.kind = self.pass_dir.kind  # a repeat records the same as its pass
        self.info: dict[str, Any] = {"rank": rank_dir.rank, "pid": os.getpid(), "pass": pass_name}
        self.steps: Steps | None = None
        self._gpu: GpuState | None = None
        self._saving = threading.Lock()
        self._tracing = threading.Lock()
        self._saved = False

    @cached_property
    def config(self) -> RunConfig:
        return load_config(self.run_dir.config)

    @cached_property
    def plan(self) -> list[Phase]:
        """What each step of the pass is for."""
        return phases(self.config, self.kind)

    @cached_property
    def turn(self) -> Turn:
        """This rank's turn among the runs that share its host."""
        return Turn(self.config.launch.turn, self.pass_dir, self.rank_dir.rank)

    def prepare(self, context: RankContext, progress: Progress, *, keep_trace: bool = True) -> Steps:
        """Create the timer, and the profiler of the pass, for this rank's device."""
        config_hash = hashlib.sha256(self.run_dir.config.read_bytes()).hexdigest()
        self.info |= describe(context) | {"config_hash": config_hash}
        log.info("rank %d of %d on %s", context.rank, context.world_size, context.device)
        profiler: StepProfiler | Capture | None = None
        if self.kind in TORCH_PASSES:
            keys = ("rank", "host", "boot_id", "config_hash")
            metadata = {f"rankscope_{key}": self.info[key] for key in keys}
            options = self.config.profile if self.kind == "torch" else light(self.config.profile)
            profiler = StepProfiler(
                options, context, self.rank_dir, metadata, keep_trace=keep_trace, guard=self.stopping
            )
        elif self.kind == "nsys":
            profiler = Capture(self.config.profile, context, profiled=under_nsys())
        self._gpu = GpuState(context, self.info["device_uuid"])
        timer = StepTimer(context.device)
        self.steps = Steps(plan=self.plan, context=context, timer=timer, profiler=profiler, progress=progress)
        return self.steps

    @property
    def annotates(self) -> bool:
        return self.kind == "torch"

    @cached_property
    def emitter(self) -> Emitter | None:
        """The emitter of NVTX ranges: on a GPU in every pass, on a CPU only under Nsight Systems."""
        assert self.steps is not None  # `prepare` comes first
        if isinstance(self.steps.profiler, Capture):
            return self.steps.profiler.emitter
        return TorchEmitter() if self.steps.context.cuda else None

    def ranges(self, *, loose: bool = False) -> Ranges:
        assert self.steps is not None  # `prepare` comes first
        return Ranges(self.steps.timer, annotate=self.annotates, nvtx=self.emitter, loose=loose)

    def begin(self) -> None:
        """Compare clocks and start sampling the GPU; all ranks together."""
        assert self.steps is not None and self._gpu is not None  # `prepare` comes first
        self._compare_clocks("before")
        self._gpu.start()

    def end(self) -> None:
        """Wait for the device and compare clocks again; all ranks together."""
        assert self.steps is not None  # `prepare` comes first
        self.steps.progress.enter("export")
        self.steps.context.synchronize()
        self._compare_clocks("after")

    def _compare_clocks(self, when: str) -> None:
        assert self.steps is not None
        context = self.steps.context
        if context.control is not None or context.world_size == 1:
            self.info.setdefault("clock_probes", []).append(clock_probes.probe(context, when).to_json())

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Guard a stop of torch.profiler and the export of its trace: its C++ code or memory use may end the process.

        Writes what is known so far before it. A signal waits for the trace.
        """
        error = sys.exception()
        with self._tracing:
            with self._saving:
                if not self._saved:
                    self._write("unfinished" if error is None else "failed", None if error is None else one_line(error))
            yield

    def save(self, error: str | None = None) -> None:
        """Write steps.parquet and rank.json. Only the first call counts, if two threads call it."""
        with self._saving:
            if not self._saved:
                if self._gpu is not None:
                    self._gpu.stop()
                self._write("ok" if error is None else "failed", error)
            self._saved = True

    def save_for(self, signal_name: str) -> None:
        """Save because of a signal, in a separate thread; waits for a trace that is being written."""
        if self._tracing.acquire(timeout=_TRACE_S):
            self._tracing.release()
        self.save(signal_name)

    def _write(self, status: str, error: str | None) -> None:
        rows = self.steps.timer.rows() if self.steps else []
        if self._gpu is not None:
            rows = [row | self._gpu.during(row["start_ns"], row["start_ns"] + (row["host_ns"] or 0)) for row in rows]
        peaks = [row["memory_peak_bytes"] for row in rows if row["memory_peak_bytes"] is not None]
        profiler = self.steps.profiler if self.steps else None
        notes = [*self.info.get("notes", []), *(profiler.notes if profiler else [])]
        info = self.info | {
            "memory_peak_bytes": max(peaks, default=None),
            "steps": len(rows),
            "module_memory_bytes": self.info.get("module_memory_bytes") or None,
            "traces": profiler.traces if profiler else [],
            **({"notes": notes} if notes else {}),
            "status": status,
            "error": error,
        }
        write_steps(rows, self.rank_dir.steps)
        write_json(self.rank_dir.info, info)


def one_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def describe(context: RankContext) -> dict[str, Any]:
    """Return the identity of this rank for rank.json."""
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
        "device_uuid": f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else None,  # as nvidia-smi prints it
        "backend": context.backend,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if context.cuda else None,
        "threads": torch.get_num_threads(),
        "affinity": sorted(os.sched_getaffinity(0)),
    }
