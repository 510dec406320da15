"""Asks Linux for a signal when the parent of this process dies, so that no process is left behind."""

import ctypes

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None)  # loaded here: between fork and exec a library must not be loaded


def signal_at_parent_death(number: int) -> None:
    """Have the kernel send this process the signal `number` when its parent dies, even by SIGKILL.

    A parent that is dead already sends nothing: compare `os.getppid()` afterwards.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
