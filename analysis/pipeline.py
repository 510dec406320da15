"""The way through: files -> tables -> one clock -> matched collectives -> steps -> verdict -> findings.

`load(path)` is for notebooks: it gives an `Analysis`, whose tables are DataFrames.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rankscope.analysis import analysed, findings, kineto, sources, stragglers
from rankscope.analysis.breakdown import exposed_of_each, measure_steps
from rankscope.analysis.clock import Alignment, align
from rankscope.analysis.collectives import match
from rankscope.analysis.errors import AnalysisError, Notice, UnreadableTraceError
from rankscope.analysis.prepare import prepare
from rankscope.analysis.rank_data import RankData
from rankscope.analysis.table import Table
from rankscope.analysis.trace import RankTrace, merge_cycles
from rankscope.analysis.waits import split_waits
from rankscope.conf import RunDir

if TYPE_CHECKING:
    import pandas as pd


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What can be set about an analysis."""

    thresholds: stragglers.Thresholds = stragglers.Thresholds()
    limits: findings.Limits = findings.Limits()


class Analysis(msgspec.Struct, kw_only=True):
    """Everything that was found out about one recording."""

    ranks: list[RankData]
    world_size: int
    missing_ranks: list[int]
    notices: list[Notice]
    alignment: Alignment
    calls: Table  # one row a record of a collective and rank
    step_table: Table  # one row a step and rank, all steps
    late_table: Table  # lateness of each rank in each step
    steps_analysed: list[int]
    steps_judged: list[int]
    verdict: stragglers.Verdict
    findings: list[findings.Finding]
    options: Options = Options()
    run_dir: RunDir | None = None

    @property
    def analysed_steps(self) -> Table:
        """The rows of `step_table` that count."""
        return self.step_table.take(np.isin(self.step_table["step"], self.steps_analysed))

    def kernels(self) -> "pd.DataFrame":
        """Return every device record that counts (see docs/tables.md), times on the common clock."""
        from rankscope.analysis.frames import kernels

        return kernels(self).to_pandas()

    def collectives(self) -> "pd.DataFrame":
        """Return one row a collective call and rank (see docs/tables.md)."""
        from rankscope.analysis.frames import collectives

        return collectives(self).to_pandas()

    def steps(self) -> "pd.DataFrame":
        """Return one row a step and rank (see docs/tables.md)."""
        from rankscope.analysis.frames import steps

        return steps(self).to_pandas()

    def segments(self) -> "pd.DataFrame":
        """Return one row a step and rank: its lateness and the collective where it was latest."""
        from rankscope.analysis.frames import segments

        return segments(self).to_pandas()


_NAMED_ONE_BY_ONE = 8  # missing ranks


def load(*paths: str | Path, options: Options | None = None) -> Analysis:
    """Analyse a run folder, a folder of traces, or trace files; `AnalysisError` when there are no numbers."""
    options = options or Options()
    found = sources.find([Path(path) for path in paths])
    traces, notices = _read(found)
    ranks, more = _identify(traces, found)
    notices = [*found.notices, *notices, *more]
    analysis = analyse_traces(ranks, options, world_size=found.world_size)
    return msgspec.structs.replace(analysis, notices=[*notices, *analysis.notices], run_dir=found.run_dir)


def analyse_traces(traces: Sequence[RankTrace], options: Options, *, world_size: int | None = None) -> Analysis:
    """Analyse tables that a reader produced, one `RankTrace` a rank; the rest of `load` only finds and reads them."""
    data = [prepare(trace) for trace in traces]
    notices = [notice for item in data for notice in item.notices]
    data = [msgspec.structs.replace(item, notices=[]) for item in data]
    size = _world_size(data, world_size)
    missing = sorted(set(range(size)) - {item.rank for item in data if item.complete})
    notices += _missing(missing, size, {item.rank for item in data})
    notices += _mixed(data)
    return _analyse(data, size, missing, notices, options)


def _analyse(
    data: list[RankData],
    world_size: int,
    missing: list[int],
    notices: list[Notice],
    options: Options,
) -> Analysis:
    whole = [item for item in data if item.complete]
    calls = match(data if not whole else whole)
    alignment = align(calls, whole or data)
    calls = split_waits(calls, alignment, frozenset(item.rank for item in whole))
    by_rank = {item.rank: calls.take(calls["rank"] == item.rank) for item in whole or data}
    calls = calls.with_columns(exposed_ns=_exposed(data, calls))
    tables = [measure_steps(item, by_rank[item.rank], alignment) for item in whole or data]
    steps = Table.concat(tables)
    chosen, left_out = analysed.choose(whole or data, steps)
    judged = analysed.judged(chosen, steps)
    late = stragglers.lateness(calls)
    counted = steps.take(np.isin(steps["step"], chosen))
    if missing or not chosen:
        reason = f"ranks {', '.join(map(str, missing))} are missing" if missing else "no whole step was recorded"
        verdict = stragglers.Verdict(verdict="undetermined", reason=reason)
    elif world_size == 1:
        verdict = stragglers.Verdict(verdict="none", steps_judged=len(judged))
    else:
        step_ns = float(np.median(counted["step_ns"]))
        verdict = stragglers.judge(late, calls, whole, alignment, judged, step_ns, options.thresholds)
    return Analysis(
        ranks=data,
        world_size=world_size,
        missing_ranks=missing,
        notices=[*notices, *left_out],
        alignment=alignment,
        calls=calls,
        step_table=steps,
        late_table=late,
        steps_analysed=chosen,
        steps_judged=judged,
        verdict=verdict,
        findings=findings.find(counted, verdict, options.limits),
        options=options,
    )


def _exposed(data: Sequence[RankData], calls: Table) -> np.ndarray:
    exposed = np.zeros(len(calls), np.int64)
    for item in data:
        rows = calls["rank"] == item.rank
        exposed[rows] = exposed_of_each(item, calls.take(rows))
    return exposed


# --- reading -------------------------------------------------------------------------------------------------


def _read(found: sources.Sources) -> tuple[list[tuple[sources.Source, RankTrace]], list[Notice]]:
    """Read every file; one that gives no numbers becomes a notice, and the others go on."""
    traces, notices = [], []
    for source in found.files:
        try:
            traces.append((source, kineto.read(source.path, source.label)))
        except UnreadableTraceError as error:
            if error.notice.kind != "not_a_trace" or source.explicit:
                rank = source.rank if source.rank is not None else source.rank_from_name
                notices.append(msgspec.structs.replace(error.notice, rank=error.notice.rank or rank))
        except OSError as error:
            text = f"{source.label}: cannot be read ({error.strerror}); check its permissions"
            notices.append(Notice(kind="unreadable", level="partial", file=source.label, message=text))
    fatal = [notice for notice in notices if notice.level == "error"]
    if fatal or not traces:
        raise AnalysisError(*_one_line(fatal or notices or found.notices, found))
    return traces, notices


def _one_line(notices: Sequence[Notice], found: sources.Sources) -> tuple[str, list[Notice]]:
    listed = list(notices)
    if not listed:
        where = found.run_dir.path if found.run_dir else "the given paths"
        return f"{where}: no trace of the torch pass in it; record one with passes=[plain,torch]", []
    more = f" (and {len(listed) - 1} more)" if len(listed) > 1 else ""
    return listed[0].message + more, listed


def _identify(
    traces: list[tuple[sources.Source, RankTrace]], found: sources.Sources
) -> tuple[list[RankTrace], list[Notice]]:
    """Give every trace its rank and join the cycles of one rank; two files that claim one rank are an error."""
    notices: list[Notice] = []
    by_rank: defaultdict[int, list[RankTrace]] = defaultdict(list)
    for source, trace in traces:
        rank, notice = _rank_of(source, trace, alone=len(traces) == 1)
        if notice is not None:
            notices.append(notice)
        known = {"host_id": source.host_id or trace.host_id, "probe_error_ns": source.probe_error_ns}
        by_rank[rank].append(msgspec.structs.replace(trace, rank=rank, **known))
    merged = []
    for rank in sorted(by_rank):
        if len(by_rank[rank]) > 1 and not _are_cycles(by_rank[rank]):
            files = [trace.files[0] for trace in by_rank[rank]]
            text = f"{' and '.join(files)}: both say rank {rank}; keep the file that belongs to this run"
            duplicate = Notice(kind="duplicate_rank", level="error", rank=rank, message=text, details={"files": files})
            world = max([trace.world_size or 0 for _, trace in traces], default=0)
            gone = sorted(set(range(world)) - set(by_rank))
            absent = [Notice(kind="missing_rank", level="partial", message=_gone(gone), details={"ranks": gone})]
            raise AnalysisError(text, [*notices, duplicate, *(absent if gone else [])])
        merged.append(merge_cycles(by_rank[rank]))
    return merged, notices


def _rank_of(source: sources.Source, trace: RankTrace, *, alone: bool) -> tuple[int, Notice | None]:
    file = source.label
    if source.rank is not None:
        return source.rank, None
    if trace.rank is not None:
        return trace.rank, None
    if source.rank_from_name is not None:
        text = f"{file}: no rank inside; rank {source.rank_from_name} is taken from its name"
        return source.rank_from_name, Notice(
            kind="rank_from_file_name", rank=source.rank_from_name, file=file, message=text
        )
    if alone:
        text = f"{file}: no rank inside or in its name; taken as rank 0, the only one"
        return 0, Notice(kind="rank_assumed", rank=0, file=file, message=text)
    text = f"{file}: no rank inside or in its name; name the files rank0.json, rank1.json, ..."
    raise AnalysisError(text, [Notice(kind="rank_unknown", level="error", file=file, message=text)])


def _are_cycles(traces: Sequence[RankTrace]) -> bool:
    """Return whether the files are profiler cycles of one rank: no step number occurs in two of them."""
    from rankscope.analysis.steps import host_steps

    numbers = [set(host_steps(trace.host)["step"].tolist()) for trace in traces]
    return all(numbers) and sum(map(len, numbers)) == len(set().union(*numbers))


def _world_size(data: Sequence[RankData], recorded: int | None) -> int:
    """Return the number of ranks of the job: stated, or implied by groups and by the ranks that are there."""
    stated = [item.world_size for item in data if item.world_size] + [recorded or 0]
    if max(stated) > 0:
        return max(*stated, max(item.rank for item in data) + 1)
    members = [rank for item in data for word in item.comms.words.get("group_ranks", []) for rank in _ranks_in(word)]
    return max([item.rank for item in data] + members) + 1


def _ranks_in(listed: str) -> list[int]:
    try:
        ranks = msgspec.json.decode(listed, type=list[int])
    except msgspec.MsgspecError:
        return []  # shortened by its writer
    return ranks


def _missing(missing: Sequence[int], world_size: int, damaged: set[int]) -> list[Notice]:
    gone = [rank for rank in missing if rank not in damaged]  # a damaged file has a notice of its own
    why = "waits, transfers and the verdict need every rank"
    if len(gone) > _NAMED_ONE_BY_ONE:
        text = f"{len(gone)} of {world_size} ranks have no trace ({gone[0]} to {gone[-1]}); {why}"
        return [Notice(kind="missing_rank", level="partial", message=text, details={"ranks": gone})]
    return [
        Notice(
            kind="missing_rank",
            level="partial",
            rank=rank,
            message=f"rank {rank} of {world_size} has no trace; {why}",
        )
        for rank in gone
    ]


def _mixed(data: Sequence[RankData]) -> list[Notice]:
    """Ranks that state different world sizes were recorded by different jobs."""
    stated = {item.world_size for item in data if item.world_size}
    if len(stated) < 2:
        return []
    sizes = ", ".join(f"{item.files[0]} says {item.world_size}" for item in data if item.world_size)
    text = f"files of different jobs: {sizes} ranks; analyse one job at a time"
    return [Notice(kind="mixed_jobs", level="partial", message=text)]


def _gone(ranks: Sequence[int]) -> str:
    return f"ranks {', '.join(map(str, ranks))} have no trace"
