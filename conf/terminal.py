"""The console of all commands. Its reader may leave: `rankscope run ... | head`."""

import os
import sys

from rich.console import Console


class Terminal(Console):
    """A console that goes on silently when nobody reads: the files and the exit status still matter."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (sys.stderr if self.stderr else sys.stdout).fileno())
        os.close(nowhere)
