"""How the C library keeps memory between ranks."""

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_OF_MILLIONS = 4 << 20  # bytes of a column from which it is given back at once, in the analysis of a large rank
_KEPT = 256 << 20  # bytes at the end of the heap that stay with the process when they are free
_LARGE = 32 << 20  # bytes from which a block is given back at once


def keep_freed_memory() -> None:
    """Reuse freed memory for the next rank, instead of giving it to the system and asking for it again.

    A worker that reads many ranks needs the same megabytes for each of them. New pages are slow: 8 ms per rank of 8 MB
    on the machine of docs/performance.md, a quarter of reading it. The setting is one of the complete process, and
    a single large rank gains nothing, so only workers call this. C libraries without this setting keep their own way.
    """
    _set(_MMAP_THRESHOLD, _LARGE)
    _set(_TRIM_THRESHOLD, _KEPT)


def return_freed_memory() -> None:
    """Give the memory of long columns back to the system as soon as it is free.

    Otherwise the C library keeps more and more of it between other blocks. This costs some 0.5 s of the system's time
    for 1 GB of JSON.
    """
    _set(_MMAP_THRESHOLD, _OF_MILLIONS)


def trim() -> None:
    """Give all free memory back to the system, also the memory between blocks that are in use."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _set(parameter: int, value: int) -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(parameter, value)
