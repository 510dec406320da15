"""Finds which rank each recording belongs to, how many ranks the job has, and which are missing or of another job.

Input: the result of reading each file. Output: one `RankData` per rank, and notices.
"""

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from rankscope.analysis.core.collective_kinds import KINDS
from rankscope.analysis.core.notices import AnalysisError, Level, Notice
from rankscope.analysis.rank import workers as ranks
from rankscope.analysis.rank.rank_data import RankData
from rankscope.analysis.rank.windows import are_windows_of
from rankscope.analysis.rank.workers import Outcome
from rankscope.analysis.read import sources
from rankscope.analysis.read.rank_trace import rank_number

_NAMED_ONE_BY_ONE = 8  # missing ranks, up to which each gets its own notice


def identify(outcomes: list[Outcome]) -> tuple[list[RankData], list[Notice]]:
    """Give every rank its number and join the cycles of one rank. Two files that claim one rank are an error."""
    notices: list[Notice] = []
    by_rank: defaultdict[int, list[Outcome]] = defaultdict(list)
    outcomes, notices = _windows_of_one_process(outcomes)
    for outcome in outcomes:
        rank, notice = _rank_of(outcome, alone=len(outcomes) == 1)
        if notice is not None:
            notices.append(notice)
        by_rank[rank].append(outcome)
    identified = []
    for rank in sorted(by_rank):
        outcome = by_rank[rank][0] if len(by_rank[rank]) == 1 else _joined(by_rank[rank])
        if outcome.data is None:
            files = [source.label for source in outcome.job.sources]
            more = f" and {len(files) - 2} more" if len(files) > 2 else ""
            text = f"{' and '.join(files[:2])}{more}: all say rank {rank}; keep the file that belongs to this run"
            text = text if more else text.replace("all say", "both say")
            duplicate = Notice(kind="duplicate_rank", level="error", rank=rank, message=text, details={"files": files})
            world = max([item.data.world_size or 0 for item in outcomes if item.data is not None], default=0)
            gone = sorted(set(range(world)) - set(by_rank))
            absent = [Notice(kind="missing_rank", level="partial", message=_gone(gone), details={"ranks": gone})]
            raise AnalysisError(text, [*notices, duplicate, *(absent if gone else [])])
        identified.append(_numbered(outcome.data, rank, outcome.job.sources[0]))
    return identified, notices


def _windows_of_one_process(outcomes: list[Outcome]) -> tuple[list[Outcome], list[Notice]]:
    """Join files that state no rank and are windows of one process, whatever they are called."""
    unnamed = [
        outcome
        for outcome in outcomes
        if outcome.data is not None and outcome.data.rank == ranks.NO_RANK and outcome.job.sources[0].rank is None
    ]
    if len(unnamed) < 2 or not are_windows_of([outcome.data for outcome in unnamed if outcome.data is not None]):
        return outcomes, []
    joined = _joined(unnamed)
    if joined.data is None:
        return outcomes, []
    text = f"{len(unnamed)} files of one process, at different times: taken as windows of one rank"
    notice = Notice(kind="windows_joined", level="info", file=unnamed[0].job.sources[0].label, message=text)
    return [joined, *(one for one in outcomes if all(one is not other for other in unnamed))], [notice]


def _joined(outcomes: list[Outcome]) -> Outcome:
    """Read the files of one rank together, as the profiler cycles of one recording, if that is what they are."""
    files = tuple(source for outcome in outcomes for source in outcome.job.sources)
    job = msgspec.structs.replace(outcomes[0].job, sources=files)
    read = [outcome.data for outcome in outcomes if outcome.data is not None]
    if len(read) < len(outcomes) or not are_windows_of(read):
        return Outcome(job=job, conflicting=True)
    return ranks.prepare_rank(job)


def _numbered(data: RankData, rank: int, source: sources.Source) -> RankData:
    """Fill in what is known from outside the file: the rank's number, its host, its clock probes."""
    notices = [
        msgspec.structs.replace(notice, rank=rank) if notice.rank == data.rank else notice for notice in data.notices
    ]
    return msgspec.structs.replace(
        data,
        rank=rank,
        host_id=source.host_id or data.host_id,
        probes=list(source.probes),
        notices=notices,
    )


def _rank_of(outcome: Outcome, *, alone: bool) -> tuple[int, Notice | None]:
    source = outcome.job.sources[0]
    file = source.label
    if source.rank is not None:
        return source.rank, None
    if outcome.data is not None and outcome.data.rank != ranks.NO_RANK:
        return outcome.data.rank, None
    if source.rank_from_name is not None:
        level: Level = "info" if source.nsys else "warning"  # reports never state a rank
        text = f"{file}: no rank inside; rank {source.rank_from_name} is taken from its name"
        return source.rank_from_name, Notice(
            kind="rank_from_file_name", level=level, rank=source.rank_from_name, file=file, message=text
        )
    if alone:
        text = f"{file}: no rank inside or in its name; taken as rank 0, the only one"
        return 0, Notice(kind="rank_assumed", rank=0, file=file, message=text)
    text = f"{file}: no rank inside or in its name; name the files rank0.json, rank1.json, ..."
    raise AnalysisError(text, [Notice(kind="rank_unknown", level="error", file=file, message=text)])


def world_size_of(data: Sequence[RankData], recorded: int | None) -> tuple[int, bool]:
    """Return the number of ranks of the job, and whether it is stated; otherwise the job has at least so many.

    They are implied by groups, by the ranks that are present, and by collectives on a device: one rank runs none.
    """
    stated = [item.world_size for item in data if item.world_size] + [recorded or 0]
    if max(stated) > 0:
        return max(*stated, max(item.rank for item in data) + 1), True
    members = [rank for item in data for word in item.comms.words.get("group_ranks", []) for rank in _ranks_in(word)]
    return max([item.rank for item in data] + members + [1] * any(map(_has_partners, data))) + 1, False


def _has_partners(data: RankData) -> bool:
    kinds = data.comms.words.get("kind", [])
    of_several = [number for number, kind in enumerate(kinds) if kind in KINDS and KINDS[kind].synchronising]
    return data.mode == "device" and bool(np.isin(data.comms["kind"], of_several).any())


def _ranks_in(listed: str) -> list[int]:
    try:
        ranks = msgspec.json.decode(listed, type=list[int])
    except msgspec.MsgspecError:
        return []  # the writer shortened the list
    return [rank for rank in ranks if rank_number(rank) is not None]


def missing_notices(missing: Sequence[int], world_size: int, damaged: set[int], *, stated: bool) -> list[Notice]:
    """Return notices for ranks without a file. Ranks with a damaged file already have a notice."""
    size = f"{'' if stated else 'at least '}{world_size}"
    gone = [rank for rank in missing if rank not in damaged]
    why = "waits, transfers and the verdict need every rank"
    if len(gone) > _NAMED_ONE_BY_ONE:
        text = f"{len(gone)} of {size} ranks have no trace ({gone[0]} to {gone[-1]}); {why}"
        return [Notice(kind="missing_rank", level="partial", message=text, details={"ranks": gone})]
    return [
        Notice(
            kind="missing_rank",
            level="partial",
            rank=rank,
            message=f"rank {rank} of {size} has no trace; {why}",
        )
        for rank in gone
    ]


def mixed_jobs(data: Sequence[RankData]) -> list[Notice]:
    """Return a notice if the ranks state different world sizes, because their files are then of different jobs."""
    stated = {item.world_size for item in data if item.world_size}
    if len(stated) < 2:
        return []
    sizes = ", ".join(f"{item.files[0]} says {item.world_size}" for item in data if item.world_size)
    text = f"files of different jobs: {sizes} ranks; analyse one job at a time"
    return [Notice(kind="mixed_jobs", level="partial", message=text)]


def _gone(ranks: Sequence[int]) -> str:
    return f"ranks {', '.join(map(str, ranks))} have no trace"
