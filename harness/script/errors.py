"""What ends a script that is recorded."""


class RecordingError(RuntimeError):
    """The script had no steps to record; the message says what to do."""


class Recorded(SystemExit):
    """Ends the script with exit status 0, because everything is recorded."""
