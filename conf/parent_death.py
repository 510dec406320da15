"""Asks Linux to tie processes to each other, so that none is left behind: by a signal, or by adoption."""

import ctypes

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_LIBC = ctypes.CDLL(None)  # loaded here: between fork and exec a library must not be loaded


def signal_at_parent_death(number: int) -> None:
    """Have the kernel send this process the signal `number` when its parent dies, even by SIGKILL.

    A parent that is dead already sends nothing: compare `os.getppid()` afterwards.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of each descendant whose own parent ends, also of one that has left its session."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
