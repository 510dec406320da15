"""Which reader reads a file: torch.profiler's or that of Nsight Systems. Both give the same tables."""

from rankscope.analysis.read.kineto import reader as kineto
from rankscope.analysis.read.rank_trace import RankTrace
from rankscope.analysis.read.sources import Source


def name(source: Source, *, fast: bool) -> str:
    """Return the reader and what it is told: two readings with the same name give the same tables."""
    if source.nsys:
        return f"nsys {source.steps!r} {source.process}"
    return "scanner" if fast else "msgspec"


def rank_inside(source: Source) -> int | None:
    """Return the rank that a file states, None when it does not or cannot be read."""
    return None if source.nsys else kineto.rank_inside(source.path)


def read(source: Source, *, fast: bool) -> RankTrace:
    """Read one source; `fast`: a trace of torch.profiler with the scanner.

    Raises `UnreadableTraceError` when it gives no numbers, `OSError` when it cannot be read.
    """
    if not source.nsys:
        return kineto.read(source.path, source.label, fast=fast)
    from rankscope.analysis.read.nsys import reader as nsys

    return nsys.read(source.path, source.label, source.steps, source.process)
