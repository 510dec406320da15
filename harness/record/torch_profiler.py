"""torch.profiler in the torch pass: records windows that hold only their own steps.

In: the schedule and options of `config.profile`. Out, in the rank's folder: a Chrome trace for each window;
`key_averages` and the stacks of the first one. `ProfilerStep#N` has the number of the row in steps.parquet.
"""

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from isal import igzip
from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

from rankscope.conf import ConfigError
from rankscope.conf.columns_file import write_columns
from rankscope.conf.contract import KEY_AVERAGES
from rankscope.conf.files import replacing, write_text
from rankscope.conf.run_dir import RankDir
from rankscope.conf.sections import ProfileConfig
from rankscope.harness.group.gloo_threads import wait_until_idle
from rankscope.harness.group.process_group import RankContext

_IDLE_S = 2.0  # how long to wait for pending collectives when a window closes, or after a failure
_TAIL = 1 << 14  # bytes at the end of a trace that hold the metadata after its events
log = logging.getLogger(__name__)


class StepProfiler:
    """Drives torch.profiler step by step and writes the files of each active window.

    `guard` is entered around each stop of torch.profiler and the export of its trace, because these may end the
    process.
    """

    def __init__(
        self,
        config: ProfileConfig,
        context: RankContext,
        rank_dir: RankDir,
        metadata: dict[str, Any],
        *,
        first: int = 0,
        keep_trace: bool = True,
        guard: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._config = config
        self._guard = guard
        self._context = context
        self._rank_dir = rank_dir
        self._keep_trace = keep_trace
        self._cycle = config.wait + config.warmup + config.active
        self._first = self._step = first  # the number of the window's first step
        self.traces: list[str] = []
        self.notes: list[str] = []  # shown by the analysis
        if config.device_only and not context.cuda:
            raise ConfigError("profile.device_only=true: this rank has no GPU, so there is nothing to record")
        activities = [] if config.device_only else [ProfilerActivity.CPU]
        activities += [ProfilerActivity.CUDA] if context.cuda else []
        self._profile = profile(
            activities=activities,
            schedule=_from(
                first,
                schedule(wait=config.wait, warmup=config.warmup, active=config.active, repeat=config.repeat),
            ),
            on_trace_ready=self._export,
            record_shapes=config.record_shapes,
            profile_memory=config.profile_memory,
            with_stack=config.with_stack,
            with_flops=config.with_flops,
            # export_stacks writes an empty file without it
            experimental_config=torch._C._profiler._ExperimentalConfig(verbose=True) if config.with_stack else None,
        )
        self._profile.step_num = first  # of ProfilerStep#N
        for key, value in metadata.items():
            self._profile.preset_metadata_json(key, json.dumps(value))

    def start(self) -> None:
        if self.opens_after(self._first - 1):
            self._meet()
        self._profile.start()

    def opens_after(self, step: int) -> bool:
        """Whether the step after `step` is the first of a window."""
        cycle, place = divmod(step + 1 - self._first, self._cycle)
        return place == self._config.wait + self._config.warmup and cycle < self._config.repeat

    def closes_after(self, step: int) -> bool:
        """Whether `step` is the last of a window."""
        return (step + 1 - self._first) % self._cycle == 0

    def step(self) -> None:
        """End a step. Before a window opens, wait for the device and for all ranks; before it closes, for the device.

        Otherwise the window would record kernels of earlier steps, and miss its own last kernels.
        """
        if self.opens_after(self._step):
            self._meet()
        closes = self.closes_after(self._step)
        if closes:
            self._context.synchronize()
        with warnings.catch_warnings(), self._stopping() if closes else nullcontext():
            # Each window has its own trace, so it is intended that a later one does not hold the earlier events.
            warnings.filterwarnings("ignore", message="Warning: Profiler clears events")
            self._profile.step()
        self._step += 1

    def stop(self) -> None:
        with self._stopping():
            self._profile.stop()

    def abort(self) -> None:
        """Stop after an error, and write the open window if possible; never raises."""
        try:
            with self._stopping():
                self._profile.stop()
        except Exception:  # a boundary: the error that stopped the loop is the one to report
            log.exception("the trace of the interrupted window could not be written")

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Guard a stop of torch.profiler: end the step and the records of all threads first."""
        if self._profile.step_rec_fn is not None:  # otherwise ProfilerStep#N would include all of this
            self._profile.step_rec_fn.__exit__(None, None, None)
            self._profile.step_rec_fn = None
        if self._config.with_stack:  # Python calls from here on are not the job's
            sys.setprofile(None)
        with self._guard():
            if not wait_until_idle(_IDLE_S):
                self._note("a gloo collective was still pending when the profiler stopped: its record has no end")
            yield

    def _note(self, text: str) -> None:
        log.warning(text)
        self.notes.append(text)

    def _meet(self) -> None:
        self._context.synchronize()
        self._context.barrier("profiler")

    def _export(self, profiler: profile) -> None:
        if not self._keep_trace:
            return
        target = self._rank_dir.cycle_trace(len(self.traces))
        plain = target.with_name(f".{target.stem}")
        try:
            profiler.export_chrome_trace(str(plain))
            name_trace(plain, f"rank{self._context.rank}/{target.name}")
            compress(plain, target)
        finally:
            plain.unlink(missing_ok=True)
        link_for_tensorboard(self._rank_dir, target)
        self.traces.append(target.name)
        if len(self.traces) == 1:
            try:
                self._summarise(profiler)
            except UnicodeDecodeError:  # with stacks, torch reads names of modules that it has freed
                self._note("key_averages and stacks left out: torch lost names of modules imported inside the window")

    def _summarise(self, profiler: profile) -> None:
        """Write what the trace does not hold. torch needs seconds for it, in the user's process."""
        if self._config.with_flops:
            write_key_averages(profiler, self._rank_dir, cuda=self._context.cuda)
        if self._config.with_stack:
            metric = "self_cuda_time_total" if self._context.cuda else "self_cpu_time_total"
            with replacing(self._rank_dir.stacks) as temporary:
                profiler.export_stacks(str(temporary), metric)


def _from(first: int, chosen: Callable[[int], ProfilerAction]) -> Callable[[int], ProfilerAction]:
    """Return a schedule whose step 0 has the number `first`."""
    return lambda step: chosen(max(0, step - first))


def name_trace(path: Path, name: str) -> None:
    """Replace the path that torch writes at the end of the trace by `name`, because traces are shared."""
    with path.open("r+b") as file:
        start = file.seek(max(0, path.stat().st_size - _TAIL))
        tail = file.read().replace(str(path).encode(), name.encode())
        file.seek(start)
        file.truncate()
        file.write(tail)


def link_for_tensorboard(rank_dir: RankDir, trace: Path) -> None:
    """Link the trace under the name that TensorBoard's plugin expects, all ranks in one folder for `--logdir`."""
    link = rank_dir.tensorboard(trace)
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(trace, link.parent))


def compress(source: Path, target: Path) -> None:
    """Write `source` gzipped to `target`, completely or not at all."""
    with replacing(target) as temporary, source.open("rb") as plain, igzip.open(temporary, "wb", 1) as packed:
        while block := plain.read(1 << 20):
            packed.write(block)


def write_key_averages(profiler: profile, rank_dir: RankDir, *, cuda: bool) -> None:
    """Write the operators of the window, summed by name (and shapes, if recorded), the longest first.

    Times are in nanoseconds and sums over the steps of the window. Sorted by device time, on a CPU by CPU time.
    """
    averages = profiler.key_averages(group_by_input_shape=profiler.record_shapes)
    rows = [
        {
            "name": item.key,
            "count": item.count,
            "self_cpu_ns": round(item.self_cpu_time_total * 1000),
            "cpu_ns": round(item.cpu_time_total * 1000),
            "self_device_ns": round(item.self_device_time_total * 1000) if cuda else None,
            "device_ns": round(item.device_time_total * 1000) if cuda else None,
            "self_cpu_memory_bytes": item.self_cpu_memory_usage if profiler.profile_memory else None,
            "self_device_memory_bytes": item.self_device_memory_usage if profiler.profile_memory and cuda else None,
            "flops": item.flops if profiler.with_flops and item.flops else None,
            "input_shapes": str(item.input_shapes) if profiler.record_shapes else None,
        }
        for item in averages
    ]
    rows.sort(key=lambda row: row["self_device_ns" if cuda else "self_cpu_ns"], reverse=True)
    write_columns(rows, KEY_AVERAGES, rank_dir.key_averages)
    order = "self_device_time_total" if cuda else "self_cpu_time_total"
    write_text(rank_dir.key_averages.with_suffix(".txt"), averages.table(sort_by=order, row_limit=100) + "\n")
