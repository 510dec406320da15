"""Which reader reads a file: torch.profiler's or that of Nsight Systems. Both give the same tables."""

from rankscope.analysis import kineto
from rankscope.analysis.sources import Source
from rankscope.analysis.trace import RankTrace


def read(source: Source) -> RankTrace:
    """Read one source; raises `UnreadableTraceError` when it gives no numbers, `OSError` when it cannot be read."""
    if not source.nsys:
        return kineto.read(source.path, source.label)
    from rankscope.analysis import nsys

    return nsys.read(source.path, source.label, source.steps, source.process)
