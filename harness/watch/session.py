"""One watched run on one rank: steps in; files, judgements that all ranks share, and windows of traces out."""

import logging
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.conf.contract import StepRow
from rankscope.conf.files import write_json
from rankscope.conf.monitor_dir import MonitorDir
from rankscope.conf.run_dir import RunDirError
from rankscope.conf.version import VERSION
from rankscope.harness.group.process_group import RankContext, of_script
from rankscope.harness.record import own_backward
from rankscope.harness.record.describe import describe
from rankscope.harness.record.nvtx import TorchEmitter
from rankscope.harness.record.ranges import Ranges
from rankscope.harness.record.step_timer import StepTimer
from rankscope.harness.watch.event import Event
from rankscope.harness.watch.exact_tests import Values
from rankscope.harness.watch.exchange import Exchange
from rankscope.harness.watch.late_rank import LateRank
from rankscope.harness.watch.logs import EventLog, RankLog, StepLog
from rankscope.harness.watch.options import Options
from rankscope.harness.watch.parts import PARTS, of_row
from rankscope.harness.watch.requests import Requests
from rankscope.harness.watch.sinks.formats import open_sinks
from rankscope.harness.watch.speed import Speed
from rankscope.harness.watch.trace_window import Windows

log = logging.getLogger("rankscope.monitor")
_LEAD = 4  # blocks between a block and the step at which every rank has surely seen it
_DRAIN_S = 10.0  # how long the end of the run waits for blocks of other ranks
_CONTROL_S = 60.0  # how long a gather waits for a rank that no longer watches
# Options that are not in monitor.json: a URI may hold a password.
_NOT_WRITTEN = ("parent", "alpha", "least_change", "on_event", "mlflow")


class Session:
    """Watches from the first step on. `notice` is called with every event, on every rank."""

    def __init__(self, options: Options, notice: Callable[[Event], None]) -> None:
        context, problem = of_script(_CONTROL_S, name="monitor")
        if problem is not None:
            log.warning("rankscope: %s; every rank watches only itself", problem)
        self._options = options
        self._notice = notice
        self._context = context
        self._info = describe(context)
        self.folder = _claim(options, context, self._info)
        self._sinks = open_sinks(options, self.folder, context)
        self._steps = StepLog(options, self._sinks)
        self._ranks = RankLog(options, self._sinks if context.rank == 0 and (options.wandb or options.mlflow) else ())
        self._events = EventLog(self._sinks, logs=context.rank == 0)
        self._windows = Windows(options.trace_steps, options.max_windows)
        ranks = 1 if context.control is None else context.world_size
        self._late = LateRank(ranks, options.alpha, options.least_change)
        self._speed = Speed(options.alpha, options.least_change)
        self._step = 0
        timer = StepTimer(context.device, memory_every=options.every)
        self._ignore_backward = own_backward.observe(timer.own_gradients)
        self.ranges = Ranges(timer, annotate=False, nvtx=TorchEmitter() if context.cuda else None, loose=True)
        self._requests = Requests(self.folder, takes=context.rank == 0)
        self._exchange = Exchange(context.control, (options.every, len(PARTS) + 1), _LEAD)

    def begin(self) -> None:
        self.ranges.timer.begin(0, "measured")

    def end_step(self, samples: int | None) -> None:
        """End the open step, which had `samples`, and begin the next one."""
        timer, every = self.ranges.timer, self._options.every
        self._steps.count(self._step, samples)
        timer.end()
        self._windows.end_step(timer, self._step)
        self._step += 1
        if self._windows.opens_before(self._step):
            timer.close()
            self._open_window()
        timer.begin(self._step, "measured")
        if self._step - self._exchange.first >= (_LEAD - 1) * every:
            timer.wait()  # the device is far behind, and the other ranks wait for this block
        self._take(timer.take())
        for first, block in self._exchange.receive(until=self._step - _LEAD * every):
            self._judge(first, block)

    def finish(self) -> None:
        """Write and judge what is left after the last step."""
        timer = self.ranges.timer
        self._ignore_backward()
        self._windows.abort()
        timer.drop()
        timer.wait()
        self._take(timer.take())
        for first, block in self._exchange.drain(_DRAIN_S):
            self._judge(first, block)
        for sink in self._sinks:
            sink.close()

    def stop(self) -> None:
        """Tell the other ranks that this one sends nothing more; waits for none of them."""
        self._ignore_backward()
        self._exchange.stop()

    def drain(self) -> None:
        """Let pending gathers end, so that the process can."""
        self._exchange.drain(_DRAIN_S)

    def _take(self, rows: list[StepRow]) -> None:
        """Send and write the steps that the device has completed."""
        opens = any(row["step"] % self._options.every == 0 for row in rows)
        asked = self._requests.take() if opens else 0  # looks for a file, so only once a block
        for number, row in enumerate(rows):
            self._exchange.add([*of_row(row), 0.0 if number else float(asked)])
        self._steps.write(rows, self._windows.holds)

    def _judge(self, first: int, block: Values) -> None:
        """Judge a block that every rank has: every rank comes to the same events."""
        last = first + self._options.every - 1
        asked, block = int(block[:, 0, -1].max()), block[:, :, :-1]  # rank 0 passes requests on
        self._ranks.add(last, block)
        self._windows.ask(asked)
        self._windows.plan_asked(first, first + (_LEAD + 1) * self._options.every)
        if first < self._options.warmup:
            return
        if self._windows.disturbs(first, last):
            self._late.interrupt()
            self._speed.interrupt()
            return
        found = self._late.add(first, block) + self._speed.add(first, np.median(block[:, :, 0], axis=1))
        for event in found:
            self._events.write(event.to_json(), event.text())
            self._notice(event)
        if any(event.event != "recovered" for event in found):
            self._windows.plan(first, first + (_LEAD + 1) * self._options.every)

    def _open_window(self) -> None:
        folder = self.folder.window(self._step)
        self._windows.open(self._context, folder, self.ranges, self._info, self._step)
        asked = self._requests.opened() if self._windows.was_asked else None
        event = {"event": "window", "step": self._step, "folder": str(folder.path)}
        self._events.write(event | ({} if asked is None else {"request": asked}), f"trace in {folder.path}")


def _claim(options: Options, context: RankContext, info: dict[str, Any]) -> MonitorDir:
    """Create the folder on rank 0, and tell the other ranks its name."""
    found, problem = None, None
    if context.rank == 0 or context.control is None:
        try:
            found = MonitorDir.claim(options.parent, datetime.now())
        except (OSError, RunDirError) as error:
            problem = error
    if context.control is not None:
        name = context.control.share("folder", None if found is None else str(found.path))
        found = MonitorDir(Path(name)) if name else None
    if found is None:
        raise problem or RuntimeError("rank 0 could not make the folder")
    if context.rank == 0:
        settings = {key: value for key, value in asdict(options).items() if key not in _NOT_WRITTEN}
        write_json(found.info, {**info, **settings, "rankscope": VERSION})
    return found
