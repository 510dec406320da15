"""A window of torch.profiler in a watched run, on all ranks at the same steps; `rankscope analyze` reads its folder."""

import json
from typing import Any

from rankscope.conf.files import write_json
from rankscope.conf.run_dir import PassDir
from rankscope.conf.sections import ProfileConfig
from rankscope.harness.group import clock_probes
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.record.ranges import Ranges
from rankscope.harness.record.step_timer import StepTimer
from rankscope.harness.record.torch_profiler import StepProfiler

WARMUP = 2  # steps between the start of the profiler and the first that is kept


class TraceWindow:
    """Open from its making until `step` returns True; the trace's steps are numbered from `WARMUP` on."""

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
            ProfileConfig(wait=0, warmup=WARMUP, active=steps),
            context,
            self._rank_dir,
            {"rankscope_rank": context.rank, "rankscope_host": context.host, "rankscope_boot_id": context.boot_id},
        )
        self._step = 0
        self._last = WARMUP + steps - 1
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
        """Write what the window holds, if it can be."""
        self._profiler.abort()
        self._ranges.annotate(False)

    def _probe(self, when: str) -> list[dict[str, Any]]:
        if self._context.control is None and self._context.world_size > 1:
            return []
        return [clock_probes.probe(self._context, when).to_json()]
