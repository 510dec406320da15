"""Lets a rank save its data when a signal asks it to end, even while it waits inside a collective.

Python runs signal handlers on the main thread only, and not while it waits in a collective for a rank that is gone. So
the handler does nothing, and a thread reads the signal from the wake-up descriptor.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rankscope.conf.contract import signal_status

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_watching: set[int] = set()  # write ends of the pipes in use


@contextmanager
def saving(save: Callable[[str], None]) -> Iterator[None]:
    """On SIGTERM or SIGINT inside the block: call `save` with the signal's name in a thread, then end the process.

    The exit status is 128 plus the signal's number, as in a shell. Nothing else is cleaned up, because a collective or
    a destructor could wait for another rank.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    _watching.add(writer)

    def watch() -> None:
        while number := os.read(reader, 1)[0]:
            if number in SIGNALS:  # other signals arrive here too, such as SIGCHLD of a loader worker
                try:
                    save(signal.Signals(number).name)
                finally:
                    os._exit(signal_status(number))

    handlers = {number: signal.signal(number, _ignore) for number in SIGNALS}
    descriptor = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=watch, name="rankscope-interrupt", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.write(writer, b"\0")
        thread.join()
        _watching.discard(writer)
        os.close(writer)
        os.close(reader)


def _ignore(_number: int, _frame: object) -> None:
    """Replace the default action, so that the signal only reaches the descriptor."""


def _forget() -> None:
    """Restore the default actions in a forked child, whose signals would reach the parent's descriptor."""
    if _watching:
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            if signal.getsignal(number) is _ignore:
                signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)


os.register_at_fork(after_in_child=_forget)
