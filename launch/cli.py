"""What the launch commands share: what went wrong as one line on stderr and an exit status."""

from collections.abc import Callable

import click

from rankscope.conf import ConfigError, RunDirError
from rankscope.conf.contract import INTERRUPTED, NO_NUMBERS, signal_status
from rankscope.launch.run.record import say
from rankscope.launch.system.processes import Interrupted


def run_command(name: str, work: Callable[[], int], hint: str) -> int:
    """Do a command's work and return its exit status: `work`'s, 2 refused or failed, 130 or 143 interrupted.

    `hint` says what to do about a file or folder that the system refuses.
    """
    try:
        return work()
    except (ConfigError, RunDirError) as error:
        say(f"{name}: {error}")
    except click.ClickException as error:
        say(f"{name}: {error.format_message()}")
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        say(f"{name}: {place}{error.strerror or error}; {hint}")
    except click.exceptions.Abort:
        return INTERRUPTED
    except Interrupted as interrupted:
        say(f"{name}: interrupted by {interrupted}")
        return signal_status(interrupted.signum)
    return NO_NUMBERS
