"""The work of a `Monitor` on one rank: steps in; files, judgements agreed by all ranks, and windows of traces out."""

import atexit
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.conf.contract import RANGE_COLUMNS, StepRow
from rankscope.conf.files import write_json
from rankscope.conf.monitor_dir import MonitorDir
from rankscope.conf.run_dir import RunDirError
from rankscope.harness.group.process_group import RankContext, of_script
from rankscope.harness.observe.marks import Source
from rankscope.harness.observe.observer import Observer
from rankscope.harness.record.nvtx import TorchEmitter
from rankscope.harness.record.ranges import Ranges
from rankscope.harness.record.recording import describe, one_line
from rankscope.harness.record.step_timer import StepTimer
from rankscope.harness.watch.exchange import Exchange, RankGone
from rankscope.harness.watch.judge import PARTS, REFERENCE, Event, LateRank, Speed
from rankscope.harness.watch.log_limit import Voice
from rankscope.harness.watch.sinks import Lines, Prometheus, StepFiles, TensorBoard
from rankscope.harness.watch.trace_window import WARMUP, TraceWindow

log = logging.getLogger("rankscope.monitor")
_COLUMNS = tuple(RANGE_COLUMNS.values())  # after the step, as in PARTS
_LEAD = 4  # blocks between a block and the step at which every rank has surely seen it
_LAST_S = 10.0  # at the end, for what the others still have to say
_CONTROL_S = 60.0  # after which a rank that has stopped watching is given up


class Watch(Observer):
    """The work of a `Monitor` on one rank."""

    def __init__(self, *, parent: Path, every: int, alpha: float, least: float, **options: Any) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.folder: MonitorDir | None = None
        self._parent = parent
        self._every = every
        self._options = options
        self.context: RankContext | None = None
        self._exchange: Exchange | None = None
        self._judges: tuple[LateRank, Speed] | None = None
        self._alpha, self._least = alpha, least
        self._closed = False
        self._step = 0
        self._samples: dict[int, int | None] = {}  # of steps that the device is not past yet
        self._block: list[list[float]] = []
        self._block_first = 0
        self._recent: deque[dict[str, Any]] = deque(maxlen=options["window"])
        self._opens: int | None = None  # the step before which a window opens
        self._trace: TraceWindow | None = None
        self._traced = (-1, -1)  # the last window, first and last step
        self._windows = 0
        self._free_from = 0  # the first step of a block that may open another window
        self._voice = Voice()
        self._sinks: list[TensorBoard | Prometheus] = []
        self.marks.install()

    # --- the loop --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the first step, all ranks together; once."""
        if self.folder is None and not self._closed:
            self._safely(self._begin)

    def mark(self, source: Source) -> None:
        """End the open step and begin the next; an error of ours ends the watch, never the training."""
        if source != self._options["steps_from"] or self._closed:
            return
        self.marks.close()
        if self.folder is None:
            self.begin()
        else:
            self._safely(self._end_step)

    def close(self) -> None:
        """Write what is left and let go of everything."""
        if not self._closed:
            self._safely(self._finish)
            self._let_go()
        if self._exchange is not None:
            with suppress(RuntimeError):
                self._exchange.drain(_LAST_S)
            self._exchange = None
        self.context = None
        atexit.unregister(self.close)

    def _begin(self) -> None:
        context, problem = of_script(_CONTROL_S, name="monitor")
        if problem is not None:
            log.warning("rankscope: %s; every rank watches for itself alone", problem)
        self.context = context
        self._info = describe(context)
        ranks = 1 if context.control is None else context.world_size
        self.folder = self._claim(context)
        self._steps_file = StepFiles(self.folder.rank(context.rank), self._options["part_steps"])
        self._stats_file = Lines(self.folder.rank(context.rank).stats)
        self._events_file = Lines(self.folder.events) if context.rank == 0 else None
        if self._options["tensorboard"]:
            self._open_sink(lambda folder: TensorBoard(folder.tensorboard, context.rank))
        if self._options["prometheus_port"] is not None:
            port = self._options["prometheus_port"] + context.local_rank
            self._open_sink(lambda _: Prometheus(port, context.rank))
        self._exchange = Exchange(context.control, (self._every, len(PARTS)), _LEAD)
        self._judges = LateRank(ranks, self._alpha, self._least), Speed(self._alpha, self._least)
        timer = StepTimer(context.device, memory_every=self._every)
        self.ranges = Ranges(timer, annotate=False, nvtx=TorchEmitter() if context.cuda else None, loose=True)
        atexit.register(self.close)
        self.take_samples()
        timer.begin(0, "measured")

    def _open_sink(self, make: Callable[[MonitorDir], TensorBoard | Prometheus]) -> None:
        assert self.folder is not None
        try:
            self._sinks.append(make(self.folder))
        except (OSError, ImportError) as error:  # a port in use, a package that is missing: the rest goes on
            log.warning("rankscope: %s", one_line(error))

    def _claim(self, context: RankContext) -> MonitorDir:
        """Make the folder on rank 0, and tell the others its name."""
        alone = context.control is None
        found, problem = None, None
        if context.rank == 0 or alone:
            try:
                found = MonitorDir.claim(self._parent, datetime.now())
            except (OSError, RunDirError) as error:
                problem = error
        if context.control is not None:
            name = context.control.share("folder", None if found is None else str(found.path))
            found = MonitorDir(Path(name)) if name else None
        if found is None:
            raise problem or RuntimeError("rank 0 could not make the folder")
        if context.rank == 0:
            options = {key: value for key, value in self._options.items() if key != "on_event"}
            write_json(found.info, {**self._info, **options, "every": self._every, "rankscope": version("rankscope")})
        return found

    def _end_step(self) -> None:
        assert self.ranges is not None and self._exchange is not None
        timer = self.ranges.timer
        self._samples[self._step] = self.take_samples()
        timer.end()
        if self._trace is not None and self._trace.step(timer):
            self._trace = None
            self._traced = (self._traced[0], self._step)
        self._step += 1
        if self._opens == self._step:
            timer.close()
            self._open_window()
        timer.begin(self._step, "measured")
        if self._step - self._block_first >= (_LEAD - 1) * self._every:
            timer.wait()  # the device is far behind, and the others are waiting for this block
        self._take(timer.take())
        for first, block in self._exchange.receive(until=self._step - _LEAD * self._every):
            self._judge(first, block)

    # --- what the device is past -------------------------------------------------------------------------------------

    def _take(self, rows: list[StepRow]) -> None:
        assert self._exchange is not None
        lines = []
        for row in rows:
            step_ns = row["device_ns"] if row["device_ns"] is not None else row["host_ns"]
            parts = [float(step_ns), *(float(row[name] or 0) for name in _COLUMNS)]
            lines.append(self._line(row, step_ns))
            self._block.append(parts)
            if len(self._block) == self._every:
                self._exchange.send(self._block_first, np.array(self._block))
                self._block_first += self._every
                self._block = []
        self._steps_file.write(lines)
        self._recent.extend(lines)
        if any(line["step"] % self._every == self._every - 1 for line in lines):
            self._summarise()

    def _line(self, row: StepRow, step_ns: int) -> dict[str, Any]:
        """Return what is written of a step."""
        line = {"step": row["step"], "start_ns": row["start_ns"], "step_ms": step_ns * 1e-6}
        line |= {f"{name[:-3]}_ms": None if row[name] is None else row[name] * 1e-6 for name in _COLUMNS}
        return line | {
            "host_ms": row["launch_ns"] * 1e-6,
            "samples": self._samples.pop(row["step"], None),
            "memory_peak_bytes": row["memory_peak_bytes"],
            "first_of_epoch": row["first_of_epoch"],
            "traced": self._traced[0] <= row["step"] <= max(self._traced),
        }

    def _summarise(self) -> None:
        """Write the statistics of the rolling window."""
        times = np.array([line["step_ms"] for line in self._recent])
        samples = [line["samples"] for line in self._recent]
        known = all(count is not None for count in samples)
        peaks = [line["memory_peak_bytes"] for line in self._recent if line["memory_peak_bytes"] is not None]
        p50, p95, p99 = np.percentile(times, (50, 95, 99)).tolist()
        stats = {
            "step": self._recent[-1]["step"],
            "time": time.time(),
            "steps": len(times),
            "step_ms_p50": p50,
            "step_ms_p95": p95,
            "step_ms_p99": p99,
            "data_wait_ms": float(np.mean([line["data_wait_ms"] for line in self._recent])),
            "samples_per_s": sum(samples) / float(times.sum() * 1e-3) if known and sum(samples) else None,
            "memory_peak_bytes": max(peaks, default=None),
        }
        self._stats_file.write(stats)
        for sink in self._sinks:
            sink.stats(stats)

    # --- what all ranks know -----------------------------------------------------------------------------------------

    def _judge(self, first: int, block: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        """Judge a block that every rank has, and act the same on every rank."""
        assert self._judges is not None and block.shape[2] == len(PARTS)
        late, speed = self._judges
        last = first + self._every - 1
        if first < self._options["warmup"]:
            return
        if first <= self._traced[1] + 1 and last >= self._traced[0] >= 0:  # a window disturbs, also the step after it
            late.reset()
            speed.reset()
            return
        found = late.add(first, block) + speed.add(first, np.median(block[:, :, 0], axis=1))
        for event in found:
            self._say(event)
        if self._wants_trace(first, found):
            self._opens = first + (_LEAD + 1) * self._every
            self._free_from = self._opens + WARMUP + self._options["trace_steps"]
            self._windows += 1

    def _wants_trace(self, first: int, found: list[Event]) -> bool:
        """Whether a window shall open; by what is the same on all ranks, whenever each of them comes to ask."""
        from rankscope.harness.script import job as script

        news = any(event.event != "recovered" for event in found)
        allowed = self._options["trace_steps"] > 0 and self._windows < self._options["max_windows"]
        return news and allowed and first >= self._free_from and script.current() is None

    def _open_window(self) -> None:
        assert self.folder is not None and self.ranges is not None and self.context is not None
        self._opens = None
        folder, steps = self.folder.window(self._step), self._options["trace_steps"]
        self._traced = (self._step, self._step + steps + REFERENCE)  # its end is known when it closes
        self._trace = TraceWindow(self.context, folder, steps, self.ranges, self._info, self._step)
        self._note({"event": "window", "step": self._step, "folder": str(folder.path)}, f"trace in {folder.path}")

    def _say(self, event: Event) -> None:
        self.events.append(event)
        self._note(event.to_json(), event.text())
        if self._options["on_event"] is not None:
            self._options["on_event"](event)

    def _note(self, event: dict[str, Any], text: str) -> None:
        if self._events_file is not None:
            self._events_file.write(event | {"time": time.time()})
            for line in self._voice.lines(event["step"], text):
                log.warning("rankscope: %s", line)
        for sink in self._sinks:
            sink.event(event, text)

    # --- its end -----------------------------------------------------------------------------------------------------

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # a boundary: whatever goes wrong here, the training goes on
            log.warning("rankscope: the monitor of this rank stops: %s", one_line(error))
            if self._exchange is not None and not isinstance(error, RankGone):
                self._exchange.stop()
            self._let_go()

    def _finish(self) -> None:
        if self.ranges is None or self._exchange is None:
            return
        if self._trace is not None:
            self._trace.abort()
        self.ranges.timer.drop()
        self.ranges.timer.wait()
        self._take(self.ranges.timer.take())
        for first, block in self._exchange.drain(_LAST_S):
            self._judge(first, block)
        self._steps_file.close()
        self._stats_file.close()
        for sink in self._sinks:
            sink.close()

    def _let_go(self) -> None:
        """Stop listening; what is under way between the ranks stays until `close`."""
        self._closed = True
        self.ranges = None
        self.marks.remove()
