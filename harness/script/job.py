"""A user's script as the job of one rank: records its steps while it runs as under torchrun.

`Election` says which marks end the steps. Anything before the first such mark is not recorded. When everything is
recorded on all ranks, the files are written, and the script ends as by `sys.exit(0)`, unless `run_on` is set. Whatever
it does after that is at most a note.
"""

import logging
import os

from rankscope.harness.group.control import Lobby, among_others
from rankscope.harness.group.process_group import RankContext, in_script, leave_groups
from rankscope.harness.observe.marks import Source
from rankscope.harness.observe.model_calls import ModelCalls
from rankscope.harness.observe.observer import Observer
from rankscope.harness.record.describe import one_line
from rankscope.harness.record.nsys_capture import keep_closed
from rankscope.harness.record.progress import Progress
from rankscope.harness.record.recording import Recording
from rankscope.harness.record.steps import Steps
from rankscope.harness.script import endings
from rankscope.harness.script.about_steps import about_steps, notes_on
from rankscope.harness.script.election import Election, kind_of
from rankscope.harness.script.errors import NO_STEP, ONLY_WARMUP, Recorded, RecordingError
from rankscope.harness.script.idle_profiler import install as install_idle_profiler
from rankscope.harness.script.preview import Preview

log = logging.getLogger(__name__)
_CAUGHT = 3  # how often a script may catch our end before its process ends without its consent


class ScriptJob(Observer):
    """Records the steps of the script, which `Marks` and `Recorder` report."""

    def __init__(self, recording: Recording, progress: Progress) -> None:
        super().__init__()
        self.done = False
        self.asked_to_end = 0  # how often `Recorded` was raised
        asked, known = recording.config.steps_from, recording.found_before()
        self._election = Election(None if asked == "auto" else asked, known.get("steps_from"), known.get("step_is"))
        self._calls = ModelCalls(lambda: self.mark("model"))
        self._recording = recording
        self._progress = progress
        self._preview: Preview | None = None
        self._lobby: Lobby | None = None
        self._steps: Steps | None = None
        self._step = 0  # the open step
        self._samples: list[int | None] = []  # per step
        self.broken: Exception | None = None  # an error of the recording, which the script may have caught

    def install(self) -> None:
        self.marks.install()
        self.marks.when_compiled(self._compiles)
        self._calls.install()
        install_idle_profiler(self._profiler_started, lambda: self.mark("profiler"))
        if self._recording.kind == "nsys":
            keep_closed(lambda: self.note("the script's own cudaProfilerStart and Stop do nothing in the nsys pass"))

    def remove(self) -> None:
        """Stop listening."""
        self.marks.remove()
        self._calls.remove()

    def forget(self) -> None:
        """Do nothing any more: this process is a child that the script has forked."""
        self.done, self.asked_to_end, self.ranges = True, 0, None
        self._steps = None
        self.remove()

    def has_recorder(self) -> None:
        """The script has a Recorder."""
        self._election.promised.add("recorder")

    def _profiler_started(self, scheduled: bool) -> None:
        if scheduled:
            self._election.promised.add("profiler")
        self.note("the script's own torch.profiler is idle while rankscope records, and writes nothing")

    def _compiles(self) -> None:
        self._calls.any = True
        self._calls.remove()

    def note(self, text: str) -> None:
        """Add a line that the analysis shows, once."""
        self._recording.note(text)

    # --- what the script does ------------------------------------------------------------------------------------

    def mark(self, source: Source) -> None:
        """End the open step and begin the next, if steps are those of `source`; raises `Recorded` after the last."""
        if self.broken is not None:
            raise self.broken
        try:
            self._mark(source)
        except Exception as error:  # a boundary: the script must not turn it into an endless recording
            self.broken = error
            raise

    def _mark(self, source: Source) -> None:
        if self.done:
            self._end_script(source)
            return
        if self.marks.made_optimizers:
            self._election.promised.add("optimizer")
        self._election.computes = self._calls.any
        heard = self._election.hear(source)
        if source == "backward" and heard in ("ignore", "preview") and self._steps is None:
            self._progress.no_step(self._election.counts[source])
        if heard == "ignore":
            return
        self.marks.close()
        if heard == "preview":
            self._look(source)
        elif heard == "switch":
            self._begin_again()
        elif self._steps is None:
            self.begin()
        else:
            self._end_step(self._steps)

    def batch(self, samples: int | None, *, first: bool) -> None:
        """Count a batch; it also shows that the script works, as in an evaluation."""
        super().batch(samples, first=first)
        self._progress.batch()

    def changed(self, source: Source) -> None:
        """Begin again where the loop goes by another optimizer or loader: the steps so far are of another kind."""
        if self.done or source != self._election.source or self._steps is None:
            self.mark(source)
            return
        self.marks.close()
        self._begin_again()

    def _look(self, source: Source) -> None:
        if self._preview is None or self._preview.source != source:
            self._preview = Preview(source)
            self.take_samples()
        else:
            self._preview.mark(self.take_samples())
            self._progress.update("warmup", self._preview.steps)
        self.ranges = self._preview.ranges

    def _end_step(self, steps: Steps) -> None:
        self._samples.append(self.take_samples())
        steps.end(self._step)
        steps.advance(self._step)
        self._step += 1
        if not steps.complete:
            steps.begin(self._step)
            return
        self._complete(steps)
        self._end_script(self._election.source)

    def _end_script(self, source: Source | None) -> None:
        """Raise `Recorded` once all ranks have recorded everything: until then others may need this one."""
        if self._recording.config.run_on or source != self._election.source or os.getpid() != self._recording.pid:
            return
        if self._lobby is not None and not self._lobby.meetings.all_finished:
            return
        self.asked_to_end += 1
        if self.asked_to_end > _CAUGHT and source != "recorder":
            self._recording.note_later("the script caught its end (a bare except) and was ended without its clean-up")
            endings.leave(0)
        raise Recorded(0)

    def begin(self) -> None:
        """Begin step 0, all ranks together; later calls do nothing. Ranks that step alone come back at the next."""
        if self._steps is not None or self.done:
            return
        source = self._election.source = self._election.source or "recorder"
        context = self._join(source)
        if context is None:
            self._progress.step_alone()
            self.marks.forget_main()
            return
        self._recording.turn.measure(self._progress)
        self._start(context)

    def _join(self, source: Source, *, patient: bool = False) -> RankContext | None:
        """Return this rank among the others; None if not all of them make steps of this kind yet.

        A script that has ended is `patient`: it holds up nobody.
        """
        if not among_others():
            return in_script(None)
        kind = kind_of(source)
        if self._lobby is None or self._lobby.name != kind:
            limits = self._recording.config.launch
            self._lobby = Lobby(kind, timeout_s=limits.timeout_s, patience_s=limits.stall_timeout_s / 2)
        if not self._lobby.enter(patient=patient):
            return None
        if self._lobby.meetings.apart:
            self.note("the ranks never step at the same time: they do not begin together")
        return in_script(self._lobby.form())

    def _start(self, context: RankContext) -> None:
        if self._election.source != "model":
            self._calls.remove()
        steps = self._steps = self._recording.prepare(context, self._progress)
        steps.timer.waits_known = False
        self.ranges = self._recording.ranges(loose=True)
        self._recording.info["steps_from"] = self._election.source
        self._recording.begin()
        steps.start()
        self.take_samples()
        steps.begin(0)

    def _begin_again(self) -> None:
        """Drop what is recorded if the first window is plain and open; otherwise drop the open step alone."""
        steps = self._steps
        if steps is None:
            self.begin()
            return
        if len(steps.windows) > 1 or steps.window.plan.kind != "plain":
            self.take_samples()
            steps.again(self._step)
            return
        self._recording.dismiss()
        self._step = 0
        self._samples.clear()
        self._start(in_script(steps.context.control))

    # --- its end -------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Finish after the script has ended by itself; raises `RecordingError` if it ended too early."""
        if self.done:
            return
        self.marks.close()
        steps, name = self._adopt() or self._steps, self._recording.config.script
        assert steps is not None  # otherwise `_adopt` raises
        steps.timer.drop()
        steps.context.synchronize()
        needed = steps.needed
        counted = steps.ended_early(self._step)
        self._recording.info["job_steps"] = self._step
        if not counted and sum(window.skipped is None for window in steps.windows) > 1:
            self._recording.give_up(steps)
            counted = steps.window.plan.counted
        elif not counted:
            raise RecordingError(f"{name} ended after {self._step} steps, {ONLY_WARMUP.format(needed=needed)}")
        left = [plan.name for plan in steps.waiting]
        more = f"; {', '.join(left)} need another start" if left else ""
        self.note(f"the script ended after {self._step} steps ({counted} counted in {steps.window.plan.name}){more}")
        self._complete(steps)

    def _adopt(self) -> Steps | None:
        """Count the preview, if it has more steps than the recording that followed it; otherwise return None.

        Raises `RecordingError` if there is neither.
        """
        name, preview, steps = self._recording.config.script, self._preview, self._steps
        made = 0 if preview is None or self._recording.kind not in ("plain", "timed") else preview.steps
        if steps is not None:
            late = preview is not None and preview.source == self._election.source
            if not late or len(steps.windows) > 1 or self._step >= made:
                return None
        if steps is None and self._lobby is not None:
            raise RecordingError(f"{name} ended, and its ranks never stepped together: {self._lobby.absent()}")
        if preview is None or not made:
            raise RecordingError(f"{name} {NO_STEP}")
        context = self._join(preview.source, patient=True) if steps is None else steps.context
        if context is None:
            assert self._lobby is not None  # a single rank always joins
            raise RecordingError(f"{name} ended, and its ranks never stepped together: {self._lobby.absent()}")
        self._recording.dismiss()
        self._election.source = self._recording.info["steps_from"] = preview.source
        self._steps = self._recording.prepare(context, self._progress)
        self._steps.adopt(preview.timer, made)
        self._samples, self._step = preview.samples, made
        return self._steps

    def abort(self) -> None:
        """Keep what is recorded after the script has failed."""
        if self._steps is not None and not self.done:
            self._steps.abort()

    def end(self, error: BaseException | None) -> None:
        """Handle the end of a script that is recorded: what it did after that changes nothing about the recording.

        An error is only passed on if the script went on by itself (`run_on`).
        """
        if error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0)):
            self._recording.note_later(f"after everything was recorded the script raised {one_line(error)}")
            if not self.asked_to_end:
                raise error
            endings.status_of(error)  # prints it
        if self.asked_to_end:
            leave_groups()

    def _complete(self, steps: Steps) -> None:
        """Write what was counted, all ranks together: from here on nothing that the script does can spoil it."""
        self.done = True
        self.ranges = None
        self._recording.info |= about_steps(self._election, self._samples)
        for text in notes_on(self._election.source, self.marks, self._recording.info, steps):
            self.note(text)
        self._recording.end()
        if steps.context.apart:
            self.note("the ranks do not step alike: only the steps that all of them made can be compared")
        self._recording.save()
        self._progress.enter("done")
        if self._lobby is not None:
            self._lobby.meetings.finish()
        steps.context.barrier("end")
