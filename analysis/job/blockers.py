"""Says from timed collectives alone which rank blocks the others, communicator by communicator, and how fast each is.

Input: `Matched`. Output: `Blockers`. There are no steps: a rank is judged by all collectives of a communicator that no
rank can leave before the last one has come. Definitions: docs/inspector.md.
"""

from typing import Literal

import msgspec
import numpy as np

from rankscope.analysis.core.collective_kinds import SYNCHRONISING
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.notices import Level, Notice
from rankscope.analysis.core.table import Column
from rankscope.analysis.core.units import ms
from rankscope.analysis.job.inspector_calls import GroupCalls, Matched
from rankscope.analysis.job.late_rank import FEW_STEPS, JobVerdict, over_run
from rankscope.analysis.measure.stragglers import VerdictName
from rankscope.analysis.read.inspector.lines import GPU, HOST, TIMINGS, UNSTATED
from rankscope.conf.contract import bus_factor

_RESOLUTION_NS = 2_000.0  # of a difference between two durations of whole microseconds
_MOST_JUDGED = 10_000  # calls of a kind
_MOST_LINES = 16


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one communicator, kind, size and timing; medians over the calls."""

    group: str
    kind: str
    bytes: int | None
    timing: str  # of the least exact rank
    count: int
    transfer_ms_p50: float | None  # the shortest duration over the ranks
    transfer_at_most_ms_p50: float  # the same, also if not all ranks left records or the kind does not hold them back
    wait_ms_p50: float | None  # what a rank's own duration has beyond it: median over calls and ranks
    own_ms_p50: float  # a rank's own duration, as Inspector gives it
    busbw_GBs: float | None  # from the transfer
    own_busbw_GBs: float | None  # from a rank's own duration


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Who is late in one communicator. Lateness is that at a call, median over the calls at which the rank is late."""

    group: str
    name: str | None
    n_ranks: int
    ranks: list[int]
    absent: list[int]
    verdict: VerdictName
    rank: int | None
    lateness_ms: float | None
    lateness_interval_ms: tuple[float, float] | None
    calls_late: int
    calls_judged: int
    chance: float | None
    reason: str | None
    incomplete: int
    unseen: int
    unusable: int


class Blockers(msgspec.Struct, frozen=True, kw_only=True):
    """The answer from all files; `lines` says it in words."""

    source: Literal["nccl_inspector"] = "nccl_inspector"
    status: Literal["ok", "ok_with_warnings", "partial"]
    ranks: dict[int, str]  # rank -> host and process id
    ranks_are: Literal["of the job", "numbered here"]
    missing_ranks: list[int]
    groups: list[Group]
    collectives: list[Size]
    point_to_point: int
    warnings: list[dict[str, object]]
    lines: list[str]


def judge(found: Matched, pairs: int, notices: list[Notice], limits: Limits) -> Blockers:
    """Judge every communicator. `pairs` counts sends and receives, `notices` come from reading."""
    groups = [_group(item, limits) for item in found.groups]
    sizes = [row for item in found.groups for row in _sizes(item)]
    notices = [*notices, *found.notices, *_quality(found, sizes, pairs)]
    levels = {notice.level for notice in notices}
    return Blockers(
        status="partial" if "partial" in levels else "ok_with_warnings" if "warning" in levels else "ok",
        ranks=found.ranks,
        ranks_are="of the job" if found.numbered else "numbered here",
        missing_ranks=found.missing,
        groups=groups,
        collectives=sorted(sizes, key=lambda row: -row.count * row.own_ms_p50),
        point_to_point=pairs,
        warnings=[notice.as_dict() for notice in notices],
        lines=_lines(groups),
    )


def _group(item: GroupCalls, limits: Limits) -> Group:
    found, judged = _verdict(item, limits)
    late = found.lateness_ns
    return Group(
        group=item.id,
        name=item.name,
        n_ranks=item.n_ranks,
        ranks=item.calls.ranks,
        absent=item.absent,
        verdict=found.verdict,
        rank=None if found.rank is None else item.calls.ranks[found.rank],
        lateness_ms=ms(late),
        lateness_interval_ms=None
        if found.interval_ns is None
        else (found.interval_ns[0] * 1e-6, found.interval_ns[1] * 1e-6),
        calls_late=found.steps_late,
        calls_judged=judged,
        chance=found.chance,
        reason=found.reason,
        incomplete=item.incomplete,
        unseen=item.unseen,
        unusable=item.unusable,
    )


def _verdict(item: GroupCalls, limits: Limits) -> tuple[JobVerdict, int]:
    """Return the verdict and how many calls it is from. A call takes the place of a step."""
    if item.n_ranks < 2:
        return JobVerdict(verdict="none", reason="the communicator has one rank"), 0
    if item.absent:
        text = (
            f"rank{'s' if len(item.absent) > 1 else ''} {_list(item.absent)} of it left no records, and may be the last"
        )
        return JobVerdict(verdict="undetermined", reason=text), 0
    rows = _judged(item)
    if len(rows) < FEW_STEPS:
        text = (
            f"{len(rows)} collectives of all ranks are too few to tell a late rank from chance, which {FEW_STEPS} can"
        )
        return JobVerdict(verdict="undetermined", reason=text), len(rows)
    own = range(len(item.calls.ranks))
    late = np.maximum(0.0, np.array([item.calls.lateness_at_calls(rank)[rows] for rank in own]))
    usual = float(np.median(item.calls.duration_ns[:, rows].max(axis=0)))
    return over_run(late, usual, limits, np.full(len(late), _RESOLUTION_NS)), len(rows)


def _judged(item: GroupCalls) -> Column:
    """Return the calls to judge by: those that hold every rank back until the last has come, by the device's time.

    Only if there are too few of them, also those whose time is not the device's, or does not say what it is. Of a long
    job the last ones of each kind are judged.
    """
    kinds = np.array(item.calls.kind)  # calls are in order of kind and number
    holds = np.zeros(len(kinds), bool)
    for kind in SYNCHRONISING:
        holds[np.flatnonzero(kinds == kind)[-_MOST_JUDGED:]] = True
    exact = np.flatnonzero(holds & (item.timing == GPU))
    return exact if len(exact) >= FEW_STEPS else np.flatnonzero(holds)


def _sizes(item: GroupCalls) -> list[Size]:
    keys: dict[tuple[str, int | None, int], list[int]] = {}
    for row, key in enumerate(zip(item.calls.kind, item.calls.bytes, item.timing.tolist(), strict=True)):
        keys.setdefault(key, []).append(row)
    shortest = item.calls.transfer_ns
    rows = []
    for (kind, size, timing), at in keys.items():
        durations, least = item.calls.duration_ns[:, at], float(np.median(shortest[at]))
        own = float(np.median(durations))
        known = kind in SYNCHRONISING and not item.absent and item.n_ranks > 1
        moved = None if size is None or kind == "barrier" or item.n_ranks < 2 else size * bus_factor(kind, item.n_ranks)
        rows.append(
            Size(
                group=item.id,
                kind=kind,
                bytes=size,
                timing=TIMINGS[timing],
                count=len(at),
                transfer_ms_p50=ms(least) if known else None,
                transfer_at_most_ms_p50=round(least * 1e-6, 6),
                wait_ms_p50=ms(float(np.median(durations - shortest[at]))) if known else None,
                own_ms_p50=round(own * 1e-6, 6),
                busbw_GBs=round(moved / least, 4) if moved is not None and known else None,
                own_busbw_GBs=None if moved is None else round(moved / own, 4),
            )
        )
    return rows


def _quality(found: Matched, sizes: list[Size], pairs: int) -> list[Notice]:
    """Return what weakens the numbers, with what it weakens."""
    notices = []
    if found.missing:
        text = (
            f"rank{'s' if len(found.missing) > 1 else ''} {_list(found.missing)} left no records: "
            "transfers, waits and the late rank of their communicators are unknown; add their files"
        )
        notices.append(Notice(kind="ranks_missing", level="partial", message=text, details={"ranks": found.missing}))
    lost: tuple[tuple[int, str, Level, str], ...] = (
        (
            sum(item.incomplete for item in found.groups),
            "records_missing",
            "warning",
            "are not in the files of all ranks and are left out: Inspector keeps the last 1024 of a communicator "
            "unless NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS is set",
        ),
        (
            sum(item.unseen for item in found.groups),
            "numbers_unseen",
            "info",
            "are in no file: smaller than NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES (8192), or lost; who is late at them is "
            "unknown",
        ),
        (
            sum(item.unusable for item in found.groups),
            "calls_unusable",
            "warning",
            "are left out: they have no time, only that of their enqueueing (collective_cpu), or ranks disagree about "
            "them",
        ),
    )
    notices += [
        Notice(kind=kind, level=level, message=f"{count} collectives {told}", details={"count": count})
        for count, kind, level, told in lost
        if count
    ]
    for timing, told in (
        (HOST, "are timed by a host's clock (kernel_cpu), not by the device: their times are rough"),
        (UNSTATED, "do not say which clock timed them (an older Inspector): their times may be rough"),
    ):
        count = sum(row.count for row in sizes if row.timing == TIMINGS[timing])
        if count:
            notices.append(Notice(kind="not_device_times", message=f"{count} collectives {told}"))
    if pairs:
        text = f"{pairs} sends and receives have no number that both sides share: their waits are unknown"
        notices.append(Notice(kind="point_to_point", level="info", message=text))
    return notices


def _list(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _lines(groups: list[Group]) -> list[str]:
    """Return the verdicts in words: late ranks, then what is unknown, then where nobody is late."""
    late, unknown, nobody = [], [], []
    for item in groups:
        where = f"communicator {item.group}{f' ({item.name})' if item.name else ''} of {item.n_ranks} ranks"
        if item.rank is not None:
            late.append(
                f"Rank {item.rank} blocks the others in {where}: it comes last in {item.calls_late} of "
                f"{item.calls_judged} collectives, by {item.lateness_ms:.3f} ms (median)."
            )
        elif item.verdict == "undetermined":
            unknown.append(f"Who is late in {where} is unknown: {item.reason}.")
        elif item.verdict == "rotating":
            nobody.append(f"No single rank is late in {where}: ranks take turns in {item.calls_late} collectives.")
        elif item.n_ranks > 1:
            nobody.append(f"No rank is late in {where}, by {item.calls_judged} collectives.")
    lines = [*late, *unknown, *nobody] or ["No communicator has more than one rank."]
    return (
        lines
        if len(lines) <= _MOST_LINES
        else [*lines[:_MOST_LINES], f"{len(lines) - _MOST_LINES} more communicators."]
    )
