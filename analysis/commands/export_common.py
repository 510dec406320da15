"""What the commands share that write a run or a sweep into another tool."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.progress import Steps
from rankscope.analysis.export.sink import Sink
from rankscope.analysis.export.write import write_point, write_sweep
from rankscope.analysis.sweep.points import run_point, sweep_points
from rankscope.conf import RunDir
from rankscope.conf.sweep_dir import SweepDir

_SWEEP = "sweep"  # the log of the figures of all points


def write_all(path: Path, open_sink: Callable[[str], Sink], *, quiet: bool) -> None:
    """Write a run, or each point of a sweep, into a sink of its own, which is opened by the point's name."""
    is_sweep = SweepDir(path).record.exists()
    points = sweep_points(SweepDir(path)) if is_sweep else [run_point(RunDir(path))]
    with Steps(shown=not quiet) as progress:
        written = 0
        for point in points:
            if point.run_dir is not None and point.config is not None:
                progress.next(f"writing {point.id}")
                with closing(open_sink(point.id)) as sink:
                    written += write_point(point, sink)
        if not written:
            raise AnalysisError(f"{path}: no step was recorded; see its run.json and logs")
        if is_sweep:
            progress.next("drawing figures")
            with closing(open_sink(_SWEEP)) as sink:
                write_sweep(points, sink)
