"""What lies at the paths a user gives: which files hold which rank of which pass, and what is missing.

Comes in: a run folder, a pass folder, folders of traces, files. Goes out: a `Source` per trace file. Nothing is
read here but names and the small JSON files of our own run folders.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from rankscope.analysis.errors import AnalysisError, Notice
from rankscope.conf import RunDir, RunDirError
from rankscope.conf.run_dir import PassDir, RankDir

_TRACE = re.compile(r"\.json(\.gz)?$")
_UNFINISHED = re.compile(r"\.json(\.gz)?\.tmp$")
_RANK = re.compile(r"rank[-_.=]?(\d+)|(?<![a-z])r(\d+)(?![a-z0-9])", re.IGNORECASE)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One trace file and what is known of it from outside."""

    path: Path
    explicit: bool  # named by the user, so it must be a trace
    rank: int | None = None  # from our own run folder; decides
    rank_from_name: int | None = None  # a guess, used when the file does not say
    host_id: str | None = None


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """All trace files of one analysis."""

    files: list[Source]
    run_dir: RunDir | None = None
    world_size: int | None = None
    notices: list[Notice] = []


def find(paths: Sequence[Path]) -> Sources:
    """Find the trace files at `paths`; `AnalysisError` when there is none."""
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
    except RunDirError as error:
        raise AnalysisError(str(error)) from None
    world_size = record.get("world_size")
    return _pass(run_dir.for_pass("torch"), run_dir, world_size if isinstance(world_size, int) else None)


def _pass(pass_dir: PassDir, run_dir: RunDir | None, world_size: int | None) -> Sources:
    files: list[Source] = []
    notices: list[Notice] = []
    for rank_dir in pass_dir.ranks():
        info = _rank_info(rank_dir, notices)
        world_size = info.get("world_size", world_size)
        traces = sorted(rank_dir.path.glob("trace*.json.gz"), key=lambda path: (len(path.name), path.name))
        files += [
            Source(path=path, explicit=True, rank=rank_dir.rank, host_id=info.get("boot_id")) for path in traces
        ]
    if not files and run_dir is None:
        raise AnalysisError(f"{pass_dir.path}: no trace.json.gz under ranks/; was the torch pass recorded?")
    return Sources(files=files, run_dir=run_dir, world_size=world_size, notices=notices)


def _rank_info(rank_dir: RankDir, notices: list[Notice]) -> dict[str, Any]:
    try:
        info = json.loads(rank_dir.info.read_text())
        return info if isinstance(info, dict) else {}
    except FileNotFoundError:
        what = "missing: the rank did not end properly"
    except (OSError, ValueError):
        what = "not valid JSON"
    notices.append(
        Notice(kind="rank_info", rank=rank_dir.rank, file=rank_dir.info.name, message=f"{rank_dir.info}: {what}")
    )
    return {}


def _loose(paths: Sequence[Path]) -> Sources:
    files: list[Source] = []
    notices: list[Notice] = []
    for path in paths:
        found = _in_folder(path) if path.is_dir() else [path]
        for file in found:
            if _UNFINISHED.search(file.name):
                text = f"{file.name}: the profiler writes .tmp and renames it at the end, so this export was cut off"
                notices.append(
                    Notice(kind="unfinished_export", level="partial", rank=_named(file), file=file.name, message=text)
                )
            else:
                files.append(Source(path=file, explicit=not path.is_dir(), rank_from_name=_named(file)))
    if not files:
        where = ", ".join(str(path) for path in paths)
        raise AnalysisError(
            notices[0].message
            if notices
            else f"{where}: no trace files (*.json, *.json.gz) in it; give a folder that has"
        )
    return Sources(files=files, notices=notices)


def _in_folder(folder: Path) -> list[Path]:
    """Return the files of a folder that may be traces; of its subfolders when it has none itself."""
    for pattern in ("*", "*/*", "**/*"):
        found = [
            path
            for path in folder.glob(pattern)
            if path.is_file() and (_TRACE.search(path.name) or _UNFINISHED.search(path.name))
        ]
        if found:
            return sorted(found, key=lambda path: (path.parent, _named(path) or 0, path.name))
    return []


def _named(path: Path) -> int | None:
    """Return the rank that a file's name, or its folder's, states; None when neither does."""
    for name in (path.name, path.parent.name):
        match = _RANK.search(name)
        if match:
            return int(match[1] or match[2])
    return int(path.parent.name) if path.parent.name.isdecimal() else None
