"""A user's script as the job of one rank: runs it as `python train.py ...` would, and records its steps.

A step ends at `Recorder.step()`. Without a Recorder it ends at the script's own `prof.step()`, otherwise after a step
of its optimizer, otherwise (without an optimizer) when the loader is asked for a batch. Anything before the first such
mark is not recorded. When a pass is complete, the script ends as by `sys.exit(0)`, unless `run_on` is set.
"""

import logging
import runpy
import statistics
import sys
from pathlib import Path

import torch.distributed as dist

from rankscope.harness.group.process_group import of_script
from rankscope.harness.observe.marks import Source
from rankscope.harness.observe.observer import Observer
from rankscope.harness.record.nsys_capture import keep_closed
from rankscope.harness.record.progress import Progress, reporting
from rankscope.harness.record.recording import Recording
from rankscope.harness.record.steps import Steps
from rankscope.harness.script.idle_profiler import install as install_idle_profiler

log = logging.getLogger(__name__)


class RecordingError(RuntimeError):
    """The script had no steps to record; the message says what to do."""


class Recorded(SystemExit):
    """Ends the script with exit status 0, because everything is recorded."""


class ScriptJob(Observer):
    """Records the steps of the script, which `Marks` and `Recorder` report."""

    def __init__(self, recording: Recording, progress: Progress) -> None:
        super().__init__()
        self.done = False
        self.recorder = False  # whether the script has a Recorder
        self._recording = recording
        self._progress = progress
        self._profiles = False  # whether the script has its own profiler with a schedule
        self._steps: Steps | None = None
        self._step = 0  # the open step
        self._samples: list[int | None] = []  # per step

    def install(self) -> None:
        self.marks.install()
        install_idle_profiler(self._profiler_started, lambda: self.mark("profiler"))
        if self._recording.kind == "nsys":
            keep_closed(lambda: self.note("the script's own cudaProfilerStart and Stop do nothing in the nsys pass"))

    def _profiler_started(self, scheduled: bool) -> None:
        self._profiles = self._profiles or scheduled
        self.note("the script's own torch.profiler is idle while rankscope records, and writes nothing")

    def note(self, text: str) -> None:
        """Add a line that the analysis shows, once."""
        self._recording.note(text)

    @property
    def source(self) -> Source:
        """The source whose marks end the steps, as far as it is known."""
        chosen = self._recording.config.steps_from
        if chosen != "auto":
            return chosen
        if self.recorder:
            return "recorder"
        if self._profiles:
            return "profiler"
        return "optimizer" if self.marks.made_optimizers else "loader"

    # --- what the script does ------------------------------------------------------------------------------------

    def mark(self, source: Source) -> None:
        """End the open step and begin the next, if steps are those of `source`; raises `Recorded` after the last."""
        if self.done or source != self.source:
            return
        self.marks.close()
        if self._steps is None:
            self.begin()
            return
        self._samples.append(self.take_samples())
        self._steps.end(self._step)
        self._steps.advance(self._step)
        self._step += 1
        if not self._steps.complete:
            self._steps.begin(self._step)
            return
        self._complete(self._steps)
        if not self._recording.config.run_on:
            raise Recorded(0)

    def begin(self) -> None:
        """Begin step 0, all ranks together; later calls do nothing."""
        if self._steps is not None or self.done:
            return
        context, problem = of_script(self._recording.config.launch.timeout_s)
        if problem is not None:
            self.note(problem)
        self._recording.turn.measure(self._progress)
        self._steps = self._recording.prepare(context, self._progress)
        self.ranges = self._recording.ranges(loose=True)
        self._recording.info["steps_from"] = self.source
        self._recording.begin()
        self._steps.start()
        self.take_samples()
        self._steps.begin(0)

    # --- its end -------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Finish after the script has ended by itself; raises `RecordingError` if it ended too early."""
        steps, name = self._steps, self._recording.config.script
        if self.done:
            return
        if steps is None:
            raise RecordingError(
                f"{name} ended without a step: no optimizer stepped twice and no DataLoader gave batches in this "
                "process; call Recorder().step() once a step (docs/own-script.md)"
            )
        self.marks.close()
        steps.timer.drop()
        steps.context.synchronize()
        needed = steps.needed
        counted = steps.ended_early(self._step)
        self._recording.info["job_steps"] = self._step
        self._complete(steps)
        if not counted and sum(window.skipped is None for window in steps.windows) == 1:
            raise RecordingError(
                f"{name} ended after {self._step} steps, all of them warm-up: this start needs {needed}; reduce "
                "warmup_steps, profile.wait or profile.warmup, or let it run longer"
            )
        left = [plan.name for plan in steps.waiting]
        more = f"; not reached: {', '.join(left)}" if left else ""
        self.note(f"the script ended after {self._step} steps ({counted} counted in {steps.window.plan.name}){more}")

    def abort(self) -> None:
        """Keep what is recorded after the script has failed."""
        if self._steps is not None and not self.done:
            self._steps.abort()

    def _complete(self, steps: Steps) -> None:
        """Write what was counted; all ranks together."""
        self.done = True
        self.ranges = None
        info = self._recording.info
        counts = [samples for samples in self._samples if samples is not None]
        info["samples_per_step"] = statistics.median(counts) if counts and all(counts) else None
        kinds = {name.split()[0] for name in self.marks.optimizers}
        if info["steps_from"] == "optimizer" and len(self.marks.optimizers) > 1:
            self.note(
                f"{len(self.marks.optimizers)} optimizers ({', '.join(sorted(kinds))}): a step is one of the first"
            )
        if self.marks.skipped:
            self.note(f"the GradScaler skipped {self.marks.skipped} optimizer steps; they count as steps")
        if not steps.context.cuda and dist.is_initialized() and "nccl" in str(dist.get_backend()):
            self.note("the device was first used after the first step: device times are null")
        self._recording.end()
        steps.context.barrier()
        self._progress.enter("done")


_current: ScriptJob | None = None


def current() -> ScriptJob | None:
    """Return the job of this process, or None if rankscope did not start it."""
    return _current


def run(recording: Recording) -> None:
    """Run the script of the configuration to its end, or until everything is recorded."""
    global _current
    with reporting(recording.rank_dir, of=recording.needed) as progress:
        job = _current = ScriptJob(recording, progress)
        job.install()
        try:
            _execute(str(recording.config.script), recording.config.script_argv)
        except SystemExit as error:
            if error.code not in (None, 0):
                job.abort()
                raise
        except BaseException:
            job.abort()
            raise
        finally:
            job.marks.remove()
        job.finish()
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()


def _execute(script: str, arguments: list[str]) -> None:
    """Run a file as `python FILE` would, or a module as `python -m NAME`."""
    sys.argv = [script, *arguments]
    if script.endswith(".py"):
        sys.path[0] = str(Path(script).resolve().parent)
        runpy.run_path(script, run_name="__main__")
    else:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
