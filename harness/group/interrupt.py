"""Lets a rank save its data when a signal asks it to end, even while it waits inside a collective.

Python runs signal handlers on the main thread only, and not while it waits in a collective for a rank that is gone. So
a thread reads the signal from the wake-up descriptor. A script may handle the signal itself, or take the descriptor
(asyncio does): what it handles is left to it, and without the descriptor the handler does the work.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from rankscope.conf.contract import signal_status
from rankscope.harness.group.hidden_thread import HiddenThread

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_watching: set[int] = set()  # write ends of the pipes in use
_handlers: set[object] = set()  # ours


@contextmanager
def saving(
    save: Callable[[str], None],
    signals: Sequence[signal.Signals] = SIGNALS,
    answers: Mapping[int, Callable[[], None]] | None = None,
) -> Iterator[None]:
    """On one of `signals` inside the block: call `save` with the signal's name in a thread, then end the process.

    The exit status is 128 plus the signal's number, as in a shell. Nothing else is cleaned up, because a collective or
    a destructor could wait for another rank. On one of `answers` it calls that in the thread, and the process goes on.
    """
    asked = answers or {}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    _watching.add(writer)

    def leave(number: int) -> None:
        try:
            save(signal.Signals(number).name)
        finally:
            os._exit(signal_status(number))

    def act(number: int) -> None:
        answer = asked.get(number)
        if answer is None:
            leave(number)
            return
        with suppress(Exception):  # a job must not end because it was asked
            answer()

    def handle(number: int, _: object) -> None:
        """Replace the default action. The thread has the signal, too, unless the script took the descriptor."""
        current = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(current, warn_on_full_buffer=False)
        if current != writer:
            act(number)

    def watch() -> None:
        while number := os.read(reader, 1)[0]:
            if number in before and signal.getsignal(number) is handle:  # others arrive too, such as SIGCHLD
                act(number)

    _handlers.add(handle)
    before = {number: signal.signal(number, handle) for number in (*signals, *asked)}
    descriptor = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = HiddenThread(watch)
    thread.start()
    try:
        yield
    finally:
        _stop(before, handle, writer, descriptor)
        os.write(writer, b"\0")
        thread.join()
        _watching.discard(writer)
        _handlers.discard(handle)
        os.close(writer)
        os.close(reader)


def _stop(before: Mapping[int, object], handle: object, writer: int, descriptor: int) -> None:
    """Restore handlers and descriptor, but not over those that a script has set."""
    current = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor if current == writer else current, warn_on_full_buffer=False)
    for number, handler in before.items():
        if signal.getsignal(number) is handle:
            signal.signal(number, handler)  # type: ignore[arg-type]


def _forget() -> None:
    """Restore the default actions in a forked child, whose signals would reach the parent's descriptor."""
    if not _watching:
        return
    current = signal.set_wakeup_fd(-1)
    if current not in _watching:
        signal.set_wakeup_fd(current, warn_on_full_buffer=False)
    for number in SIGNALS:
        if signal.getsignal(number) in _handlers:
            signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)


os.register_at_fork(after_in_child=_forget)
