"""Finds the trace files at the paths a user gives: which rank and pass each file belongs to, and what is missing.

Input: a run folder, a pass folder, folders of traces, or files. Output: one `Source` per trace file. Only names and the
small JSON files of our own run folders are read here.
"""

import gzip
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rankscope.analysis.core.notices import AnalysisError, Level, Notice
from rankscope.analysis.read.inspector.reader import is_inspector
from rankscope.analysis.read.pass_steps import read_pass
from rankscope.analysis.read.rank_info import read_rank_info
from rankscope.analysis.read.rank_trace import Probe, rank_number
from rankscope.conf import RunDir, RunDirError
from rankscope.conf.contract import NO_COLLECTIVES, NO_RECORDER, PASSES
from rankscope.conf.files import open_regular
from rankscope.conf.plain_text import path_text
from rankscope.conf.run_dir import PassDir, RankDir

_TRACE = re.compile(r"\.json(\.gz)?$")
_NSYS = re.compile(r"\.(sqlite|nsys-rep|qdstrm)$")
_PFTRACE = re.compile(r"\.pftrace(\.gz)?$")
_UNFINISHED = re.compile(r"\.json(\.gz)?\.tmp$")
_RANK = re.compile(r"rank[-_.=]?(\d+)|(?<![a-z])r(\d+)(?![a-z0-9])", re.IGNORECASE)
_DIGITS = 12  # of a number in a name; a longer one is not a rank
_HEAD = 1 << 18  # bytes before a trace's first event


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One trace file, and what is known about it from outside the file."""

    path: Path
    label: str  # its name in messages
    explicit: bool  # the user named it, so it must be a trace
    rank: int | None = None  # from our own run folder; takes precedence
    rank_from_name: int | None = None  # a guess, used if the file does not state a rank
    host_id: str | None = None
    probes: tuple[Probe, ...] = ()  # of its clock against rank 0's
    process: int | None = None  # selects a process of an Nsight Systems report that holds several
    steps: str | None = None  # names the ranges that are steps

    @property
    def nsys(self) -> bool:
        """Whether Nsight Systems wrote the file."""
        return _NSYS.search(self.path.name) is not None

    @property
    def pftrace(self) -> bool:
        """Whether it is a Perfetto trace of torch.profiler."""
        return _PFTRACE.search(self.path.name) is not None


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """All trace files of one analysis."""

    files: list[Source]
    run_dir: RunDir | None = None
    world_size: int | None = None
    notices: list[Notice] = []
    pass_name: str | None = None  # the pass that the files belong to, if they come from our own run folder


def find(paths: Sequence[Path]) -> Sources:
    """Find the trace files at `paths`. Raises `AnalysisError` if there are none."""
    for path in paths:
        if not path.exists():
            raise AnalysisError(f"{path}: does not exist; give a run folder, a folder of traces, or trace files")
    if len(paths) == 1 and paths[0].is_dir():
        if (paths[0] / "run.json").exists():
            return _run(RunDir(paths[0]))
        if (paths[0] / "ranks").is_dir():
            return _pass(PassDir(paths[0]), None, None)
    return _loose(paths)


def _run(run_dir: RunDir) -> Sources:
    try:
        record = run_dir.read_record()
        run_dir.check_links()
    except RunDirError as error:
        raise AnalysisError(str(error)) from None
    world_size = record.get("world_size")
    size = rank_number(world_size)
    found = {name: _pass(run_dir.for_pass(name), run_dir, size) for name in ("light", "torch", "nsys")}
    ranks = {name: len({file.rank for file in files.files}) for name, files in found.items()}
    chosen = "torch" if ranks["torch"] else "light" if ranks["light"] else "nsys"
    if ranks["light"] >= ranks["torch"] > 0 and _shorter(run_dir):
        chosen = "light"
    notices = found[chosen].notices + recording_notices(run_dir)
    return msgspec.structs.replace(found[chosen], pass_name=chosen, notices=notices)


def _shorter(run_dir: RunDir) -> bool:
    """Return whether the light pass disturbed the job less than the torch pass, judged by their step times."""
    light, full = (read_pass(run_dir.for_pass(name), "active") for name in ("light", "torch"))
    times = [None if steps is None else steps.step_ns() for steps in (light, full)]
    return times[0] is not None and (times[1] is None or times[0] < times[1])


def recording_notices(run_dir: RunDir) -> list[Notice]:
    """Return the notes that ranks wrote about their recording, each once, with the pass and the first rank."""
    said: dict[str, Notice] = {}
    for pass_dir in (found for kind in PASSES for found in run_dir.repeats(kind)):
        for rank_dir in pass_dir.ranks():
            info = _rank_info(rank_dir, [])
            notes, step_is = info.get("notes"), info.get("step_is")
            if step_is is not None:
                said.setdefault(step_is, Notice(kind="what_a_step_is", level="info", message=step_is))
            for text in notes or []:
                level: Level = "info" if str(text).endswith((NO_COLLECTIVES, NO_RECORDER)) else "warning"
                message = f"{pass_dir.name} pass: {text}"
                notice = Notice(kind="recording", level=level, rank=rank_dir.rank, message=message)
                said.setdefault(str(text), notice)
    return list(said.values())


def _pass(pass_dir: PassDir, run_dir: RunDir | None, world_size: int | None) -> Sources:
    files: list[Source] = []
    notices: list[Notice] = []
    for rank_dir in pass_dir.ranks():
        info = _rank_info(rank_dir, notices)
        world_size = rank_number(info.get("world_size")) or world_size
        traces = sorted(rank_dir.path.glob("trace*.json.gz"), key=lambda path: (len(path.name), path.name))
        traces = traces or reports(rank_dir.path.glob("nsys.*"))
        files += [
            Source(
                path=path,
                label=f"ranks/{rank_dir.rank}/{path_text(path.name)}",
                explicit=True,
                rank=rank_dir.rank,
                host_id=_host_id(info),
                probes=_probes(info),
            )
            for path in traces
        ]
    if not files and run_dir is None:
        raise AnalysisError(
            f"{pass_dir.path}: no trace.json.gz and no nsys.sqlite under ranks/; was a torch or nsys pass recorded?"
        )
    return Sources(files=files, run_dir=run_dir, world_size=world_size, notices=notices)


def reports(paths: Iterable[Path]) -> list[Path]:
    """Return the file to read for each Nsight Systems report: its export, unless the report is newer."""
    by_stem: defaultdict[Path, dict[str, Path]] = defaultdict(dict)
    for path in paths:
        if _NSYS.search(path.name):
            by_stem[path.with_suffix("")][path.suffix] = path
    chosen = []
    for found in by_stem.values():
        export, report = found.get(".sqlite"), found.get(".nsys-rep")
        stale = export is not None and report is not None and export.stat().st_mtime < report.stat().st_mtime
        chosen.append(report if export is None or (stale and report) else export)
    raw = [found[".qdstrm"] for found in by_stem.values() if set(found) == {".qdstrm"}]
    return sorted([path for path in chosen if path is not None] + raw)


def _rank_info(rank_dir: RankDir, notices: list[Notice]) -> dict[str, Any]:
    try:
        return read_rank_info(rank_dir)
    except FileNotFoundError:
        what = "missing: the rank did not end properly"
    except (OSError, ValueError):
        what = "not valid JSON"
    notices.append(
        Notice(kind="rank_info", rank=rank_dir.rank, file=rank_dir.info.name, message=f"{rank_dir.info}: {what}")
    )
    return {}


def _host_id(info: dict[str, Any]) -> str | None:
    """Return what identifies a rank's clock: the boot id, and the host because containers may share a kernel."""
    boot, host = info.get("boot_id"), info.get("host")
    return f"{boot} {host}" if boot else None


def _probes(info: dict[str, Any]) -> tuple[Probe, ...]:
    """Return the rank's clock probes; none if they cannot be read."""
    try:
        return tuple(msgspec.convert(info.get("clock_probes") or [], list[Probe]))
    except msgspec.ValidationError:
        return ()


def _loose(paths: Sequence[Path]) -> Sources:
    files: list[Source] = []
    notices: list[Notice] = []
    for path in paths:
        found = (
            _of_one_kind(_in_folder(path, _TRACE), _in_folder(path, _PFTRACE), _reports_in(path))
            if path.is_dir()
            else [path]
        )
        for file in found:
            name = path_text(file.name)
            if _UNFINISHED.search(file.name):
                text = f"{name}: an unfinished export (the profiler writes .tmp and renames it when complete)"
                notices.append(
                    Notice(kind="unfinished_export", level="partial", rank=_named(file), file=name, message=text)
                )
            else:
                files.append(Source(path=file, label=name, explicit=not path.is_dir(), rank_from_name=_named(file)))
    if not files:
        raise AnalysisError(notices[0].message if notices else _no_trace(paths))
    return Sources(files=files, notices=notices)


def _in(folder: Path) -> list[Path]:
    return _of_one_kind(_in_folder(folder, _TRACE), _in_folder(folder, _PFTRACE), _reports_in(folder))


def _no_trace(paths: Sequence[Path]) -> str:
    where = ", ".join(str(path) for path in paths)
    if any(is_inspector(path) for path in paths):
        return f"{where}: has no trace, but NCCL Inspector's records; `rankscope collectives` reads them"
    return f"{where}: no trace files (*.json, *.json.gz, *.pftrace, *.sqlite, *.nsys-rep) in it; give a folder that has"


def _in_folder(folder: Path, ending: re.Pattern[str]) -> list[Path]:
    """Return the files of a folder with this ending; if there are none, those of its subfolders."""
    for pattern in ("*", "*/*", "**/*"):
        found = [
            path
            for path in folder.glob(pattern)
            if path.is_file() and (ending.search(path.name) or (ending is _TRACE and _UNFINISHED.search(path.name)))
        ]
        if found:
            return sorted(found, key=lambda path: (path.parent, _named(path) or 0, path.name))
    return []


def _of_one_kind(traces: list[Path], *others: list[Path]) -> list[Path]:
    """Return torch.profiler's JSON traces; or the first other kind, if the JSON files next to it are not traces."""
    found = next((files for files in others if files), [])
    return found if found and not any(map(_looks_like_trace, traces)) else traces


def _looks_like_trace(path: Path) -> bool:
    try:
        with os.fdopen(open_regular(path, follow=True), "rb") as raw:
            return b'"traceEvents"' in (gzip.open(raw) if path.suffix == ".gz" else raw).read(_HEAD)
    except (OSError, EOFError, zlib.error):
        return True  # a damaged trace must be reported


def _reports_in(folder: Path) -> list[Path]:
    """Return the Nsight Systems reports in a folder; if there are none, those in its subfolders."""
    for pattern in ("*", "*/*", "**/*"):
        found = reports(path for path in folder.glob(pattern) if path.is_file())
        if found:
            return found
    return []


def _named(path: Path) -> int | None:
    """Return the rank that a file's name or its folder's name states; None if neither does."""
    for name in (path.name, path.parent.name):
        match = _RANK.search(name)
        if match:
            return rank_number(int((match[1] or match[2])[:_DIGITS]))
    return rank_number(int(path.parent.name[:_DIGITS])) if path.parent.name.isdecimal() else None
