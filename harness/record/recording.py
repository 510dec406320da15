"""Records one rank in one start: the run folder and the windows in, the files of the rank in each window out.

It records the reference model and user scripts in the same way. Whatever stops the rank, the recorded steps are kept
and rank.json has the reason.
"""

import hashlib
import json
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from rankscope.conf.columns_file import write_columns
from rankscope.conf.contract import STEP_COLUMNS, StepRow
from rankscope.conf.files import read_json, write_json, write_text
from rankscope.conf.run_dir import RankDir, RunDir
from rankscope.conf.schema import RunConfig, load_config
from rankscope.harness.group import clock_probes
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.record import own_backward
from rankscope.harness.record.describe import describe, one_line
from rankscope.harness.record.nsys_capture import Capture
from rankscope.harness.record.nvtx import Emitter, PackageEmitter, TorchEmitter, under_nsys
from rankscope.harness.record.progress import Progress
from rankscope.harness.record.ranges import Ranges
from rankscope.harness.record.schedule import Plan, known_steps, plans
from rankscope.harness.record.slow_steps import SlowSteps
from rankscope.harness.record.step_timer import StepTimer
from rankscope.harness.record.steps import Steps, Window
from rankscope.harness.record.timed_collectives import TimedCollectives, why_not
from rankscope.harness.record.torch_profiler import StepProfiler
from rankscope.harness.record.turn import Turn

_TRACE_S = 10.0  # how long a signal waits for a trace; less than launch.grace_s and torchrun's own 30 s
log = logging.getLogger(__name__)


class Recording:
    """One rank in one start, which records one window after another; `info` becomes rank.json of each of them."""

    def __init__(self, run_dir: RunDir, names: Sequence[str], rank: int) -> None:
        self.run_dir = run_dir
        self.names = list(names)
        self.pass_dir = run_dir.for_pass(names[0])  # logs and progress of the start lie there
        self.rank_dir = self.pass_dir.rank(rank)
        self.kind = self.pass_dir.kind  # of the first window
        self.info: dict[str, Any] = {"rank": rank, "pid": os.getpid()}
        self.steps: Steps | None = None
        self._ignore_backward: Callable[[], None] = lambda: None
        self._keep_trace = True
        self._metadata: dict[str, Any] = {}
        self._ranges: list[Ranges] = []
        self._when_detailed: list[Callable[[bool], None]] = []
        self._saving = threading.Lock()
        self._tracing = threading.Lock()
        self._saved = False

    @property
    def pid(self) -> int:
        """The process of the rank; a child that it forks has another."""
        return int(self.info["pid"])

    @cached_property
    def config(self) -> RunConfig:
        return load_config(self.run_dir.config)

    @cached_property
    def plans(self) -> list[Plan]:
        """The windows of this start in order."""
        return plans(self.config, self.run_dir, self.names, known_steps(self.run_dir))

    @property
    def needed(self) -> int:
        """How many steps the start needs at least."""
        return sum(len(plan.phases) for plan in self.plans)

    def give_up(self, steps: Steps) -> None:
        """Leave out the last window, in which no step counts: it is recorded in another start."""
        window = steps.windows.pop()
        steps.waiting.insert(0, window.plan)
        shutil.rmtree(self._dir_of(window).path, ignore_errors=True)

    def found_before(self) -> dict[str, Any]:
        """Return what an earlier start says about the steps of this rank; empty if this start has the plain window."""
        if self.kind == "plain":
            return {}
        try:
            found = read_json(self.run_dir.for_pass("plain").rank(self.info["rank"]).info)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) and found.get("status") == "ok" else {}

    @cached_property
    def turn(self) -> Turn:
        """This rank's turn among the runs that share its host."""
        return Turn(self.config.launch.turn, self.pass_dir, self.rank_dir.rank)

    def prepare(self, context: RankContext, progress: Progress, *, keep_trace: bool = True) -> Steps:
        """Create what times the steps on this rank's device."""
        config_hash = hashlib.sha256(self.run_dir.config.read_bytes()).hexdigest()
        self.info |= describe(context) | {"config_hash": config_hash}
        log.info("rank %d of %d on %s", context.rank, context.world_size, context.device)
        self._metadata = {f"rankscope_{key}": self.info[key] for key in ("rank", "host", "boot_id", "config_hash")}
        self._keep_trace = keep_trace
        self.steps = Steps(
            plans=self.plans,
            seconds=self.config.seconds,
            context=context,
            timer=StepTimer(context.device),
            progress=progress,
            opened=self._opened,
            closed=self._closed,
        )
        self._ignore_backward = own_backward.observe(self.steps.timer.own_gradients)
        return self.steps

    def _opened(self, window: Window) -> None:
        """Give a window what records it, and let ranges be seen by its profiler."""
        assert self.steps is not None
        kind, context = window.plan.kind, self.steps.context
        if kind == "timed":
            window.skipped = why_not(context)
            if window.skipped is not None:
                self.note(f"collectives were not timed: {window.skipped}")
                return
            window.timed = TimedCollectives()
        elif kind == "plain":
            window.slow = SlowSteps(self.steps.timer)
        elif kind == "nsys":
            window.profiler = Capture(window.plan.profile, context, profiled=under_nsys())
        else:
            window.profiler = StepProfiler(
                window.plan.profile,
                context,
                self._dir_of(window),
                self._metadata,
                first=window.first,
                keep_trace=self._keep_trace,
                guard=self.stopping,
            )
        annotates = kind in ("torch", "detail") and not window.plan.profile.device_only
        for item in self._ranges:
            item.annotate(annotates)
        if window.plan.profile.modules and window.profiler is not None:
            for act in self._when_detailed:
                act(annotates)
            self._when_detailed.clear()

    def _closed(self, window: Window) -> None:
        """Write the files of a window as soon as it is complete: whatever the job does next, they are there."""
        for item in self._ranges:
            item.annotate(False)
        with self._saving:
            self._write(window, "ok", None)

    def when_detailed(self, act: Callable[[bool], None]) -> None:
        """Call `act` when the window opens that records modules; its argument is whether torch.profiler records."""
        self._when_detailed.append(act)

    def note(self, text: str) -> None:
        """Add a line that the analysis shows, once."""
        notes = self.info.setdefault("notes", [])
        if text not in notes:
            notes.append(text)
            log.info("%s", text)

    def note_later(self, text: str) -> None:
        """Add a line about what came after the files were written."""
        log.info("%s", text)
        try:
            info = read_json(self.rank_dir.info)
            write_json(self.rank_dir.info, info | {"notes": [*info.get("notes", []), text]})
        except (OSError, ValueError):  # it is in the log
            return

    def dismiss(self) -> None:
        """Keep nothing of what is recorded so far: `prepare` follows."""
        self._ignore_backward()
        if self.steps is not None:
            self.steps.dismiss()
        self.info.pop("clock_probes", None)
        self._ranges.clear()

    def _dir_of(self, window: Window) -> RankDir:
        return self.run_dir.for_pass(window.plan.name).rank(self.rank_dir.rank)

    @cached_property
    def emitter(self) -> Emitter | None:
        """The emitter of NVTX ranges: on a GPU in every pass, on a CPU only under Nsight Systems."""
        assert self.steps is not None  # `prepare` comes first
        if self.kind == "nsys":
            return TorchEmitter() if self.steps.context.cuda else PackageEmitter() if under_nsys() else None
        return TorchEmitter() if self.steps.context.cuda else None

    def ranges(self, *, loose: bool = False) -> Ranges:
        assert self.steps is not None  # `prepare` comes first
        made = Ranges(self.steps.timer, annotate=False, nvtx=self.emitter, loose=loose)
        self._ranges.append(made)
        return made

    def begin(self) -> None:
        """Compare clocks; all ranks together."""
        self._compare_clocks("before")

    def end(self) -> None:
        """Wait for the device and compare clocks again; all ranks together."""
        assert self.steps is not None  # `prepare` comes first
        self._ignore_backward()
        self.steps.progress.enter("export")
        self.steps.context.synchronize()
        self._compare_clocks("after")

    def _compare_clocks(self, when: str) -> None:
        assert self.steps is not None
        context = self.steps.context
        if context.barrier("clock"):
            self.info.setdefault("clock_probes", []).append(clock_probes.probe(context, when).to_json())

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Guard a stop of torch.profiler and the export of its trace: its C++ code or memory use may end the process.

        Writes what is known so far before it. A signal waits for the trace.
        """
        error = sys.exception()
        with self._tracing:
            with self._saving:
                if not self._saved and self.steps is not None and self.steps.windows:
                    status = "unfinished" if error is None else "failed"
                    self._write(self.steps.window, status, None if error is None else one_line(error))
            yield

    def save(self, error: str | None = None) -> None:
        """Write the files of every window that was begun. Only the first call counts, if two threads call it.

        A window that is complete stays so, whatever happened afterwards.
        """
        with self._saving:
            if not self._saved:
                # The launcher looks for the files of the first window, even if that was skipped.
                windows = [] if self.steps is None else [w for w in self.steps.windows if self._has_files(w)]
                for window in windows:
                    failed = error is not None and not window.closed
                    self._write(window, "failed" if failed else "ok", error if failed else None)
                if not windows:
                    self._write(None, "ok" if error is None else "failed", error)
            self._saved = True

    def _has_files(self, window: Window) -> bool:
        return window.skipped is None or window.plan.name == self.names[0]

    def save_for(self, signal_name: str) -> None:
        """Save because of a signal, in a separate thread; waits for a trace that is being written."""
        if self._tracing.acquire(timeout=_TRACE_S):
            self._tracing.release()
        self.save(signal_name)

    def _write(self, window: Window | None, status: str, error: str | None) -> None:
        rank_dir = self.rank_dir if window is None else self._dir_of(window)
        rank_dir.path.mkdir(parents=True, exist_ok=True)
        rows: list[StepRow] = []
        if self.steps is not None and window is not None:
            rows = [row for row in self.steps.timer.rows() if window.first <= row["step"] <= window.last]
        peaks = [row["memory_peak_bytes"] for row in rows if row["memory_peak_bytes"] is not None]
        recorder = None if window is None else window.profiler or window.timed
        notes = [*self.info.get("notes", []), *(recorder.notes if recorder else [])]
        profiler = None if window is None else window.profiler
        info = self.info | {
            "pass": self.names[0] if window is None else window.plan.name,
            "memory_peak_bytes": max(peaks, default=None),
            "steps": len(rows),
            "module_memory_bytes": self.info.get("module_memory_bytes") or None,
            "traces": profiler.traces if profiler else [],
            **({"notes": notes} if notes else {}),
            "status": status,
            "error": error,
        }
        write_columns(rows, STEP_COLUMNS, rank_dir.steps)
        if window is not None and window.timed is not None and window.timed.calls:
            write_text(rank_dir.calls, json.dumps(window.timed.calls))
        if window is not None and window.slow is not None and window.slow.found:
            write_text(rank_dir.slow_steps, json.dumps(window.slow.found))
        write_json(rank_dir.info, info)
