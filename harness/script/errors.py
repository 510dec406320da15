"""What ends a script that is recorded."""

NO_STEP = (
    "ended without a step: no optimizer stepped twice, and no DataLoader, backward pass or model was used twice in the "
    "main thread of this process; call Recorder().step() once a step (docs/own-script.md)"
)
ONLY_WARMUP = (
    "all of them warm-up: this start needs {needed}; reduce warmup_steps, profile.wait or profile.warmup, or let it "
    "run longer"
)


class RecordingError(RuntimeError):
    """The script had no steps to record; the message says what to do."""


class Recorded(SystemExit):
    """Ends the script with exit status 0, because everything is recorded."""
