"""The stages of an analysis: files -> ranks -> one clock -> matched collectives -> steps -> verdict -> findings.

`load(path)` returns an `Analysis`; commands and notebooks use the same function.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from rankscope.analysis.align import borrowed_sizes
from rankscope.analysis.align.clock import Alignment
from rankscope.analysis.align.nsys_groups import with_groups
from rankscope.analysis.align.pairing import pair
from rankscope.analysis.align.probes import stepped
from rankscope.analysis.align.waits import split_waits
from rankscope.analysis.core import group_by
from rankscope.analysis.core.notices import AnalysisError, Notice
from rankscope.analysis.core.progress import Progress
from rankscope.analysis.core.table import Column, Table
from rankscope.analysis.explain.findings import explain
from rankscope.analysis.measure import ceilings, step_choice, stragglers
from rankscope.analysis.measure.breakdown import exposed_of_each, measure_steps
from rankscope.analysis.measure.recording import Recording, untraced
from rankscope.analysis.measure.verdict import decide
from rankscope.analysis.options import Options
from rankscope.analysis.rank import workers
from rankscope.analysis.rank.cache import prune_user_folder
from rankscope.analysis.rank.identity import identify, missing_notices, mixed_jobs, world_size_of
from rankscope.analysis.rank.rank_data import RankData
from rankscope.analysis.rank.workers import Outcome
from rankscope.analysis.read import reader, sources
from rankscope.analysis.read.nsys import reports
from rankscope.analysis.read.pass_steps import read_pass
from rankscope.analysis.result import Analysis
from rankscope.analysis.verify import without_profiler
from rankscope.analysis.verify.null_reasons import clock_notices, null_reasons
from rankscope.analysis.verify.two_profilers import Agreement, agreement
from rankscope.conf import ConfigError, RunDir, RunDirError, load_config
from rankscope.conf.contract import TORCH_PASSES

_NAMED_ONE_BY_ONE = 8  # a message lists at most this many ranks
_NO_ROWS = np.zeros(0, np.int64)
_UNTRACED = "not traced: the parts of a step are unknown; record more with passes=[plain,torch]"


def load(*paths: str | Path, options: Options | None = None) -> Analysis:
    """Analyse a run folder, a folder of traces, or trace files; raises `AnalysisError` if there are no numbers."""
    options, places = options or Options(), [Path(path) for path in paths]
    recording, notices = _plain_only(places, options) or _record(places, options)
    without, more = without_profiler.read(recording)
    notices += more
    if not recording.ranks:
        absent = sorted(set(range(recording.world_size)) - set(without.ranks))
        recording = msgspec.structs.replace(recording, missing_ranks=absent)
    agreed, more = _second_witness(recording)
    notices += more
    if recording.ranks:
        notices += clock_notices(recording) + null_reasons(recording)
    return Analysis(
        **{name: getattr(recording, name) for name in recording.__struct_fields__},
        findings=explain(recording, without),
        without=without,
        agreement=agreed,
        notices=notices,
    )


def _plain_only(paths: list[Path], options: Options) -> tuple[Recording, list[Notice]] | None:
    """Return the recording of a completed run that has unprofiled steps but no trace; otherwise None."""
    run_dir = RunDir(paths[0])
    if len(paths) != 1 or not run_dir.record.exists():
        return None
    try:
        config, completed = load_config(run_dir.config), run_dir.read_record().get("status") == "completed"
    except (ConfigError, RunDirError):
        return None  # the reader of traces reports what is wrong
    traced = any(rank.trace.exists() for name in TORCH_PASSES for rank in run_dir.for_pass(name).ranks())
    asked = "nsys" in config.passes or traced
    if asked or not completed or read_pass(run_dir.for_pass("plain"), "measured") is None:
        return None
    notice = Notice(kind="not_traced", level="info", message=_UNTRACED)
    return untraced(config.world_size, run_dir, options, _UNTRACED), [notice, *sources.recording_notices(run_dir)]


def _record(paths: list[Path], options: Options) -> tuple[Recording, list[Notice]]:
    """Read the traces and measure them."""
    found = sources.find(paths)
    files = [msgspec.structs.replace(source, steps=options.steps_from) for source in found.files]
    found = reports.expand(msgspec.structs.replace(found, files=files), options.steps_from)
    if options.only_ranks is not None:
        found = _only(found, options.only_ranks)
    outcomes, notices = _read(found, options)
    data, more = identify(outcomes)
    notices = [*found.notices, *notices, *more]
    if len(paths) == 1 and options.borrow_sizes:
        own = found.run_dir.for_pass(found.pass_name).path if found.run_dir and found.pass_name else paths[0]
        data = _with_borrowed_sizes(data, own)
    recording, more = measure_ranks(data, options, world_size=found.world_size)
    recording = msgspec.structs.replace(
        recording,
        run_dir=found.run_dir,
        pass_name=found.pass_name,
        ceilings=ceilings.find(options.ceilings, found.run_dir),
    )
    named = {source.label for source in found.files if source.explicit}
    told = [notice for notice in notices if notice.file in named or _matters(notice, recording)]
    return recording, told + more


def _matters(notice: Notice, recording: Recording) -> bool:
    """Return False for a file of a folder that is no trace, unless it has the name of a rank without a trace."""
    return notice.kind != "not_a_trace" or notice.rank in recording.missing_ranks


def _with_borrowed_sizes(data: list[RankData], folder: Path) -> list[RankData]:
    """Return the ranks of a pass with the sizes of collectives that only another pass of the run has."""
    other = borrowed_sizes.lender(data, folder)
    if other is None:
        return data
    try:
        lender, _ = _record([other], Options(cache=False, borrow_sizes=False))
    except AnalysisError:
        return data  # analysing that pass itself reports what is wrong
    return borrowed_sizes.borrow(data, lender.ranks, lender.steps_judged)


def _second_witness(recording: Recording) -> tuple[Agreement | None, list[Notice]]:
    """Compare with the nsys pass of a run whose torch pass was analysed; a notice if that pass gives no numbers."""
    if recording.run_dir is None or not recording.ranks or recording.ranks[0].source != "kineto":
        return None, []
    pass_dir = recording.run_dir.for_pass("nsys")
    if not any(rank.nsys_export.exists() or rank.nsys_report.exists() for rank in pass_dir.ranks()):
        return None, []
    try:
        nsys, _ = _record([pass_dir.path], Options(cache=False, borrow_sizes=False))
    except AnalysisError as error:
        message = f"nsys pass: {error}; the two profilers cannot be compared"
        return None, [Notice(kind="nsys_pass_unusable", message=message)]
    return agreement(recording, nsys)


def measure_ranks(
    data: list[RankData], options: Options, *, world_size: int | None = None
) -> tuple[Recording, list[Notice]]:
    """Measure the ranks together, given what each rank's own trace says."""
    notices = [notice for item in data for notice in item.notices]
    data = [msgspec.structs.replace(item, notices=[]) for item in data]
    size, stated = world_size_of(data, world_size)
    data = with_groups(data, size)
    absent = sorted(set(range(size)) - {item.rank for item in data if item.complete})
    missing = [rank for rank in absent if options.only_ranks is None or rank in options.only_ranks]
    left_out = sorted(set(absent) - set(missing))
    notices += missing_notices(missing, size, {item.rank for item in data}, stated=stated)
    notices += _left_out(left_out) + mixed_jobs(data)
    undecided = f"rank{'s' if len(missing) > 1 else ''} {_list(missing)} missing" if missing else None
    undecided = undecided or (f"ranks {_list(left_out)} were left out on request" if left_out else None)
    recording, more = _measure(data, size, missing, undecided, options)
    return msgspec.structs.replace(recording, size_stated=stated), notices + more


def _measure(
    data: list[RankData], world_size: int, missing: list[int], undecided: str | None, options: Options
) -> tuple[Recording, list[Notice]]:
    complete = [item for item in data if item.complete]
    paired = pair(complete or data)
    alignment = paired.alignment
    calls = split_waits(paired.calls, alignment, frozenset(item.rank for item in complete))
    rows = group_by.positions(calls["rank"])
    measured = Table({name: calls[name] for name in ("start", "end", "ready_ns", "wait_ns")})
    tables = [measure_steps(item, measured.take(rows.get(item.rank, _NO_ROWS)), alignment) for item in complete or data]
    calls = calls.with_columns(exposed_ns=_exposed(data, calls, rows))
    steps = Table.concat(tables)
    chosen, notices = step_choice.choose(complete or data, steps, options.only_steps)
    opening = [step for item in notices if item.kind == step_choice.WINDOW_START for step in item.details["steps"]]
    if options.only_steps is not None:
        known = chosen
        chosen, more = step_choice.only(known, options.only_steps)
        if known and not chosen:
            raise AnalysisError(f"none of the steps that were asked for; the recording has {known[0]} to {known[-1]}")
        notices += more
    notices += [*stepped(data), *paired.notices]
    late = stragglers.lateness(calls, steps)
    judged, verdict = decide(
        calls,
        steps,
        late,
        chosen,
        step_choice.with_lost_records(complete or data, steps, options.only_steps),
        ranks=complete,
        world_size=world_size,
        alignment=alignment,
        unpaired=paired.unpaired,
        undecided=undecided,
        limits=options.limits,
    )
    recording = Recording(
        ranks=data,
        world_size=world_size,
        missing_ranks=missing,
        alignment=alignment,
        calls=calls,
        step_table=steps,
        late_table=late,
        steps_analysed=chosen,
        steps_opening=opening,
        steps_judged=judged,
        verdict=verdict,
        options=options,
        stretch=_stretch(complete or data, measured, rows, alignment),
    )
    return recording, notices


def _stretch(ranks: list[RankData], calls: Table, rows: dict[int, Column], alignment: Alignment) -> Table | None:
    """Return the whole window of each rank as one stretch; None if there are steps."""
    windows = [item.stretch for item in ranks]
    if any(window is None for window in windows):
        return None
    tables = []
    for item, window in zip(ranks, windows, strict=True):
        whole = msgspec.structs.replace(item, steps=window)
        tables.append(measure_steps(whole, calls.take(rows.get(item.rank, _NO_ROWS)), alignment))
    return Table.concat(tables)


def _exposed(data: Sequence[RankData], calls: Table, rows: dict[int, Column]) -> Column:
    exposed = np.zeros(len(calls), np.int64)
    times = Table({name: calls[name] for name in ("start", "end")})
    for item in data:
        own = rows.get(item.rank, _NO_ROWS)
        exposed[own] = exposed_of_each(item, times.take(own))
    return exposed


# --- reading -------------------------------------------------------------------------------------------------


def _read(found: sources.Sources, options: Options) -> tuple[list[Outcome], list[Notice]]:
    """Read and prepare every rank. A rank without numbers becomes a notice; the others continue."""
    outcomes = workers.prepare_all(workers.jobs(found, options), options.executor, Progress(shown=options.progress))
    if options.cache_folder is None and any(outcome.kept for outcome in outcomes):
        prune_user_folder()
    notices = [notice for outcome in outcomes for notice in outcome.notices]
    read = [outcome for outcome in outcomes if outcome.data is not None or outcome.conflicting]
    fatal = [notice for notice in notices if notice.level == "error"]
    if fatal or not read:
        raise AnalysisError(*_one_line(fatal or notices or found.notices, found))
    return read, notices


def _one_line(notices: Sequence[Notice], found: sources.Sources) -> tuple[str, list[Notice]]:
    listed = list(notices)
    if not listed:
        if found.run_dir is None:  # then there are files
            return f"{found.files[0].path}: not a trace, nor is any other file; record with torch.profiler or nsys", []
        return f"{found.run_dir.path}: no trace of a torch or nsys pass; {_why_none(found)}", []
    more = f" (and {len(listed) - 1} more)" if len(listed) > 1 else ""
    return listed[0].message + more, listed


def _why_none(found: sources.Sources) -> str:
    """Say why a run folder has no trace according to its record, otherwise how to record one."""
    try:
        record = found.run_dir.read_record() if found.run_dir else {}
    except RunDirError:
        record = {}
    status = record.get("status", "completed")
    if status in ("submitted", "running"):
        return f"its status is {status}: the run has not ended, or its launcher was killed"
    if status != "completed":
        failure = record.get("failure") or {}
        return f"its status is {status}: {failure.get('message', 'no cause is known')}"
    return "record one with passes=[plain,torch]"


def _only(found: sources.Sources, wanted: frozenset[int]) -> sources.Sources:
    """Keep the files of the wanted ranks. The run folder, the file's beginning or its name gives the rank."""
    kept = []
    for source in found.files:
        rank = source.rank if source.rank is not None else reader.rank_inside(source)
        if (source.rank_from_name if rank is None else rank) in wanted:
            kept.append(source)
    if not kept:
        raise AnalysisError(f"no file is a trace of rank {_list(sorted(wanted))}; give ranks that the recording has")
    return msgspec.structs.replace(found, files=kept)


def _left_out(left_out: Sequence[int]) -> list[Notice]:
    if not left_out:
        return []
    text = f"ranks {_list(left_out)} were left out on request; waits, transfers and the verdict need every rank"
    return [Notice(kind="ranks_left_out", level="info", message=text, details={"ranks": list(left_out)})]


def _list(ranks: Sequence[int]) -> str:
    """Return ranks for a message: all if they are few, otherwise the first, the last and their number."""
    if len(ranks) > _NAMED_ONE_BY_ONE:
        return f"{ranks[0]} to {ranks[-1]} ({len(ranks)} of them)"
    return ", ".join(map(str, ranks))
