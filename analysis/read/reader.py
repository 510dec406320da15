"""Selects the reader for a file: JSON or Perfetto traces of torch.profiler, Nsight Systems. All give equal tables."""

from rankscope.analysis.read.kineto import reader as kineto
from rankscope.analysis.read.rank_trace import RankTrace, plausible
from rankscope.analysis.read.sources import Source


def name(source: Source, *, fast: bool) -> str:
    """Return the reader's name with its settings: two readings with the same name give the same tables."""
    if source.nsys:
        return f"nsys {source.steps!r} {source.process}"
    if source.pftrace:
        return f"pftrace {source.steps!r}"
    return f"{'scanner' if fast else 'msgspec'} {source.steps!r}"


def rank_inside(source: Source) -> int | None:
    """Return the rank that a file states; None if it states none or cannot be read."""
    return None if source.nsys or source.pftrace else kineto.rank_inside(source.path)


def read(source: Source, *, fast: bool) -> RankTrace:
    """Read one source. `fast`: read a torch.profiler trace with the scanner.

    Raises `UnreadableTraceError` if the file gives no numbers, `OSError` if it cannot be read.
    """
    if source.pftrace:
        from rankscope.analysis.read.pftrace import reader as pftrace

        return plausible(pftrace.read(source.path, source.label))
    if not source.nsys:
        return plausible(kineto.read(source.path, source.label, fast=fast))
    from rankscope.analysis.read.nsys import reader as nsys

    return plausible(nsys.read(source.path, source.label, source.steps, source.process))
