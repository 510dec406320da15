"""Windows of torch.profiler in a watched run, at the same steps on all ranks; `rankscope analyze` reads them."""

import json
from collections import deque
from typing import Any

from rankscope.conf.files import write_json
from rankscope.conf.run_dir import PassDir
from rankscope.conf.sections import ProfileConfig
from rankscope.harness.group import clock_probes
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.record.ranges import Ranges
from rankscope.harness.record.schedule import LEAD_IN
from rankscope.harness.record.step_timer import StepTimer
from rankscope.harness.record.torch_profiler import StepProfiler
from rankscope.harness.script import run as script
from rankscope.harness.watch.late_rank import REFERENCE

WARMUP = 2  # steps between the start of the profiler and the first step that counts


class Windows:
    """Decides when windows open, and knows which steps they hold.

    It is given the same events at the same blocks on every rank, so all ranks decide the same.
    """

    def __init__(self, steps: int, most: int) -> None:
        self._usual = self._steps = steps  # of an event's window, and of the next or current one
        self._left = most if steps > 0 else 0
        self._asked: deque[int] = deque()  # steps of the windows that were asked for from outside
        self.was_asked = False  # whether the next or current window was asked for
        self._free_from = 0  # first step of a block that may open another window
        self._opens: int | None = None  # the step before which a window opens
        self._window: TraceWindow | None = None
        self._first = self._last = -1  # steps of the last window; while it is open, its end is a guess

    def plan(self, first: int, opens: int) -> None:
        """Let a window open before the step `opens`, because of an event in the block that begins at `first`."""
        # under `rankscope run` the process has its own torch.profiler
        if self._left and first >= self._free_from and script.current() is None:
            self._left -= 1
            self._plan(opens, self._usual, asked=False)

    def ask(self, steps: int) -> None:
        """Note that a window of so many steps was asked for from outside; 0: none was."""
        if steps:
            self._asked.append(steps)

    def plan_asked(self, first: int, opens: int) -> None:
        """Let the next window that was asked for open before the step `opens`, if none is open or planned."""
        if self._asked and first >= self._free_from and script.current() is None:
            self._plan(opens, self._asked.popleft(), asked=True)

    def _plan(self, opens: int, steps: int, *, asked: bool) -> None:
        self._opens, self._steps, self.was_asked = opens, steps, asked
        self._free_from = opens + WARMUP + steps

    def opens_before(self, step: int) -> bool:
        return self._opens == step

    def holds(self, step: int) -> bool:
        return self._first <= step <= self._last

    def disturbs(self, first: int, last: int) -> bool:
        """Whether any of the steps from `first` to `last` is in a window or follows one."""
        return first <= self._last + 1 and last >= self._first >= 0

    def open(self, context: RankContext, folder: PassDir, ranges: Ranges, info: dict[str, Any], step: int) -> None:
        """Open a window whose first step is `step`."""
        self._opens = None
        self._first, self._last = step, step + self._steps + REFERENCE
        self._window = TraceWindow(context, folder, self._steps, ranges, info, step)

    def end_step(self, timer: StepTimer, step: int) -> None:
        if self._window is not None and self._window.step(timer):
            self._window, self._last = None, step

    def abort(self) -> None:
        if self._window is not None:
            self._window.abort()


class TraceWindow:
    """Open from its creation until `step` returns True; the steps that count are numbered from `WARMUP` on."""

    def __init__(
        self, context: RankContext, folder: PassDir, steps: int, ranges: Ranges, info: dict[str, Any], first: int
    ) -> None:
        self._context = context
        self._ranges = ranges
        self._rank_dir = folder.rank(context.rank)
        self._rank_dir.path.mkdir(parents=True, exist_ok=True)
        self._info = info | {"first_step": first}
        self._info["clock_probes"] = self._probe("before")
        self._profiler = StepProfiler(
            ProfileConfig(wait=0, warmup=WARMUP - LEAD_IN, active=steps + LEAD_IN),
            context,
            self._rank_dir,
            {"rankscope_rank": context.rank, "rankscope_host": context.host, "rankscope_boot_id": context.boot_id},
        )
        self._step = 0
        ranges.annotate(True)
        self._profiler.start()

    def step(self, timer: StepTimer) -> bool:
        """End a step; returns whether the window is closed and written."""
        closes = self._profiler.closes_after(self._step)
        if closes or self._profiler.opens_after(self._step):
            timer.close()
        self._profiler.step()
        self._step += 1
        if not closes:
            return False
        self._profiler.stop()
        self._ranges.annotate(False)
        self._info["clock_probes"] += self._probe("after")
        self._info |= {"traces": self._profiler.traces, "status": "ok", "error": None}
        write_json(self._rank_dir.info, json.loads(json.dumps(self._info)))
        return True

    def abort(self) -> None:
        """Write what the window holds, if possible."""
        self._profiler.abort()
        self._ranges.annotate(False)

    def _probe(self, when: str) -> list[dict[str, Any]]:
        if self._context.control is None and self._context.world_size > 1:
            return []
        return [clock_probes.probe(self._context, when).to_json()]
