"""Prepares Nsight Systems reports for reading: exports them, and splits them into one source per training process.

Input: the sources that were found. Output: one source per process that trained, all of one job. Exports are written
next to their reports, where nsys itself puts them.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rankscope.analysis.core.notices import AnalysisError, Notice, UnreadableTraceError
from rankscope.analysis.read.sources import Source, Sources
from rankscope.conf import nsys_tool

if TYPE_CHECKING:
    from rankscope.analysis.read.nsys.preview import Glance

_APART_NS = 10 * 10**9  # a larger gap between the windows of two ranks is another job, not a clock error


def expand(found: Sources, steps: str | None) -> Sources:
    """Export the reports, and give each process of a report its own source.

    Raises `AnalysisError` if a report is given twice, or if the reports belong to two jobs.
    """
    if not any(source.nsys for source in found.files):
        return found
    from rankscope.analysis.read.nsys import preview  # with SQLite

    others = [source.label for source in found.files if not source.nsys]
    if others:
        raise AnalysisError(f"{others[0]}: a trace of torch.profiler among reports of Nsight Systems; give one kind")
    files: list[Source] = []
    notices: list[Notice] = list(found.notices)
    glances: list[tuple[Source, Glance]] = []
    for source in found.files:
        try:
            source = msgspec.structs.replace(_exported(source), steps=steps)
            glance = preview.glance(source.path, source.label, steps)
        except UnreadableTraceError as error:
            rank = source.rank if source.rank is not None else source.rank_from_name
            notices.append(msgspec.structs.replace(error.notice, rank=rank))
            continue
        except OSError as error:
            text = f"{source.label}: cannot be read ({error.strerror}); check its permissions"
            notices.append(Notice(kind="unreadable", level="partial", file=source.label, message=text))
            continue
        glances.append((source, glance))
        files += _processes(source, glance, notices)
    _check_twice(glances)
    _check_one_job(glances)
    if not files:
        fatal = notices[0]
        more = f" (and {len(notices) - 1} more)" if len(notices) > 1 else ""
        raise AnalysisError(fatal.message + more, notices)
    return msgspec.structs.replace(found, files=files, notices=notices, world_size=found.world_size or _ranks(files))


def _ranks(files: Sequence[Source]) -> int | None:
    """Return how many ranks there seem to be: a report does not say, so count those found if no number is missing.

    A single report does not tell: it may be one of many.
    """
    stated = {source.rank_from_name if source.rank is None else source.rank for source in files}
    return len(stated) if len(stated) > 1 and stated == set(range(len(stated))) else None


def _exported(source: Source) -> Source:
    """Return the source of the export; create the export if there is none yet."""
    path = source.path
    if path.suffix == ".sqlite":
        return source
    if path.suffix == ".qdstrm":
        text = f"{source.label}: a raw recording, because nsys found no importer; QdstrmImporter -i FILE makes a report"
        raise UnreadableTraceError(_notice("unfinished_report", source, text))
    program = nsys_tool.find()
    if program is None:
        text = f"{source.label}: cannot be read without nsys, which is not installed here; on a host that has it: "
        text += "nsys export -t sqlite FILE"
        raise UnreadableTraceError(_notice("nsys_not_found", source, text))
    target = path.with_suffix(".sqlite")
    error = nsys_tool.export(program, path, target)
    if error is not None:
        text = f"{source.label}: {error}; export it with an nsys at least as new as the one that recorded it"
        raise UnreadableTraceError(_notice("export_failed", source, text))
    label = str(Path(source.label).with_suffix(".sqlite"))
    return msgspec.structs.replace(source, path=target, label=label)


def _notice(kind: str, source: Source, message: str) -> Notice:
    return Notice(kind=kind, level="partial", file=source.label, message=message)


def _processes(source: Source, glance: "Glance", notices: list[Notice]) -> list[Source]:
    """Return a source for each process; in one report around torchrun, the order of pids stands for the ranks."""
    if len(glance.processes) < 2:
        return [source]
    pids = [process & 0xFFFFFF for process in glance.processes]
    text = (
        f"{source.label}: holds {len(pids)} processes that trained; taken as ranks 0 to {len(pids) - 1} in the order "
        "of their pids; record one report per rank to be sure"
    )
    notices.append(Notice(kind="rank_from_pid", file=source.label, message=text, details={"pids": pids}))
    return [
        msgspec.structs.replace(source, process=process, rank=rank, rank_from_name=None)
        for rank, process in enumerate(glance.processes)
    ]


def _check_twice(glances: "Sequence[tuple[Source, Glance]]") -> None:
    seen: dict[object, Source] = {}
    for source, glance in glances:
        key = (glance.session_start, tuple(glance.processes), glance.window)
        if glance.window is not None and key in seen:
            text = f"{seen[key].label} and {source.label}: the same report twice; keep one of them"
            raise AnalysisError(text, [Notice(kind="same_report", level="error", file=source.label, message=text)])
        seen[key] = source


def _check_one_job(glances: "Sequence[tuple[Source, Glance]]") -> None:
    """Refuse reports whose windows are far apart: ranks of one job record the same steps at the same time."""
    windows = [(*glance.window, source) for source, glance in glances if glance.window and glance.comparable]
    windows.sort(key=lambda item: item[0])
    for (_, end, source), (start, _, other) in pairwise(windows):
        if start - end > _APART_NS:
            text = f"{source.label} and {other.label}: recorded {(start - end) * 1e-9:.0f} s apart, so they belong to "
            text += "two jobs"
            text += "; give the reports of one"
            raise AnalysisError(text, [Notice(kind="mixed_jobs", level="error", file=other.label, message=text)])
