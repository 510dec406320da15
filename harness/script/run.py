"""Runs a user's script as one rank, as under torchrun, and looks at how it ended."""

import os

from rankscope.conf.contract import ENDED
from rankscope.harness.record.progress import reporting
from rankscope.harness.record.recording import Recording
from rankscope.harness.script import endings
from rankscope.harness.script.job import ScriptJob
from rankscope.harness.script.main_module import execute

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
        os.register_at_fork(after_in_child=job.forget)
        error: BaseException | None = None
        try:
            execute(str(recording.config.script), recording.config.script_argv)
        except BaseException as raised:  # a boundary: every end of a script is looked at here
            error = raised
        if os.getpid() != recording.pid:  # a child that the script has forked ends as it would without rankscope
            endings.leave(endings.status_of(error))
        job.remove()
        if job.broken is not None:
            job.abort()
            raise job.broken
        if job.done:
            job.end(error)
        elif error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            job.finish()
        else:
            job.abort()
            raise error
        progress.enter(ENDED)
