"""Writes to the user's terminal, which may be gone: `rankscope run ... 2>&1 | head`, or a closed window."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def may_be_gone() -> Iterator[None]:
    """Send stderr to nowhere from the first time on that it cannot be written: the run is worth more than its words."""
    try:
        yield
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)


def say(text: str) -> None:
    """Print a line for the user on stderr."""
    with may_be_gone():
        print(text, file=sys.stderr, flush=True)
