"""What the launch commands share: known errors and interruptions as one line on stderr and an exit status."""

from collections.abc import Sequence

import click

from rankscope.conf import ConfigError, RunDirError, command
from rankscope.conf.contract import signal_status
from rankscope.conf.messages import suggestion
from rankscope.launch.configure.compose import keys
from rankscope.launch.system.processes import Interrupted
from rankscope.launch.system.terminal import say

KNOWN = (ConfigError, RunDirError)


def run_command(run: click.Command, argv: Sequence[str], *, hint: str, prefix: str) -> int:
    """Run a command as `conf.command.run_command` does; a signal that stopped it ends it with 128 + its number."""
    try:
        return command.run_command(run, argv, known=KNOWN, hint=hint, prefix=prefix)
    except Interrupted as interrupted:
        say(f"{prefix}: interrupted by {interrupted}")
        return signal_status(interrupted.signum)


def overrides_only(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the words that no option took; raises `ConfigError` for one that looks like an option."""
    for word in words:
        if word.startswith("-"):
            near = _as_key(word) or _as_argument(word, words) or suggestion(word.partition("=")[0], options)
            raise ConfigError(
                f"{word}: no such option; {near}the options are {', '.join(options)}; the rest is key=value"
            )
    return list(words)


def _as_key(option: str) -> str:
    """Return "did you mean ...? " for `--world-size=2`, as other programs write it."""
    key, equals, value = option.lstrip("-").replace("-", "_").partition("=")
    return f"did you mean {key}={value if equals else '...'}? " if key in keys() else ""


def _as_argument(option: str, words: Sequence[str]) -> str:
    """Return a hint about an option that stands behind a script, as after `python`."""
    script = next((word for word in words if word.startswith("script=") or word.endswith(".py")), None)
    return "" if script is None else f"an argument of the script comes after -- ({script} -- {option} ...); "
