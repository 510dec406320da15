"""Matches the records of NCCL Inspector over the ranks, communicator by communicator, to timed collectives.

Input: `Records` of a folder. Output: a `GroupCalls` per communicator, whose `calls` are `TimedCalls` like those of a
timed window. A call is used if every rank of the communicator that left records has it. What does not fit is counted.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from rankscope.analysis.core.collective_kinds import EVEN, PER_PART, collective_kind
from rankscope.analysis.core.notices import AnalysisError, Notice
from rankscope.analysis.core.table import Column
from rankscope.analysis.job.timed_calls import TimedCalls
from rankscope.analysis.read.inspector.lines import ENQUEUE
from rankscope.analysis.read.inspector.reader import Records

_UNEVEN = "allgatherv"  # ranks give parts of different sizes, and a record has the rank's own
Pairs = dict[int, list[tuple[int, int]]]  # communicator -> its (process, rank in it), as codes and numbers


class GroupCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one communicator that all of its ranks with records have, in order of kind and number."""

    id: str
    name: str | None  # what the job calls it
    n_ranks: int
    absent: list[int]  # of the communicator's own ranks, those without records
    calls: TimedCalls  # its `ranks` are those of the job
    timing: Column  # of each call the least exact of its ranks, a position in TIMINGS
    incomplete: int  # calls that some rank has and another has not
    unseen: int  # numbers between the first and the last one that no rank has
    unusable: int  # calls without a device's time, or on which the ranks disagree


class Matched(msgspec.Struct, frozen=True, kw_only=True):
    """All communicators of a job."""

    ranks: dict[int, str]  # rank -> host and process id
    numbered: bool  # whether a communicator of all processes numbers the ranks
    missing: list[int]  # ranks of that communicator without records
    groups: list[GroupCalls]
    notices: list[Notice]


def match(records: Records) -> Matched:
    """Match the records of all ranks. Raises `AnalysisError` if no communicator can be used."""
    pairs, notices = _pairs(records)
    world = _world(records, pairs)
    number = _numbering(records, pairs, world)
    rows = np.lexsort([records.columns[name] for name in ("rank", "seq", "kind", "group")])
    bounds = np.searchsorted(records.columns["group"][rows], np.arange(len(records.groups) + 1))
    groups: list[GroupCalls] = []
    ranks: dict[int, str] = {}
    for code, own in pairs.items():
        numbers = {pair: number(code, *pair) for pair in own}
        if None in numbers.values():
            text = "has a process with several ranks, which another communicator cannot tell apart: it is left out"
            notices.append(_about(records, code, "ranks_not_told_apart", text))
            continue
        known = {rank: found for (_, rank), found in numbers.items() if found is not None}
        ranks |= {known[rank]: _text(records, process) for process, rank in own}
        groups.append(_calls(records, code, rows[bounds[code] : bounds[code + 1]], known))
    if world is None:
        notices.append(Notice(kind="ranks_numbered", level="info", message=_numbered(records)))
    return Matched(
        ranks=dict(sorted(ranks.items())),
        numbered=world is not None,
        missing=[] if world is None else _absent(records, world, pairs[world]),
        groups=groups,
        notices=notices,
    )


def _text(records: Records, process: int) -> str:
    return f"{records.processes[process].host} {records.processes[process].pid}"


def _numbered(records: Records) -> str:
    return (
        f"no communicator has all {len(records.processes)} processes: ranks are numbered here by host and process id, "
        "and ranks without a file cannot be noticed; if these are several jobs, give one folder each"
    )


def _about(records: Records, code: int, kind: str, text: str) -> Notice:
    return Notice(kind=kind, level="partial", message=f"communicator {records.groups[code].id}: {text}")


def _absent(records: Records, code: int, own: list[tuple[int, int]]) -> list[int]:
    return sorted(set(range(records.groups[code].n_ranks)) - {rank for _, rank in own})


def _pairs(records: Records) -> tuple[Pairs, list[Notice]]:
    """Return who takes part in each communicator; one whose files contradict each other is left out."""
    columns = [records.columns[name] for name in ("group", "process", "rank")]
    found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for group, process, rank in np.unique(np.stack(columns, axis=1), axis=0).tolist():
        found[group].append((process, rank))
    sizes = Counter(group.id for group in records.groups)
    kept, notices = {}, []
    for code, own in found.items():
        ranks, group = [rank for _, rank in own], records.groups[code]
        if sizes[group.id] > 1 or len(set(ranks)) < len(ranks) or max(ranks) >= group.n_ranks:
            text = "its files disagree about its ranks, so it is left out; give the files of one job, each once"
            notices.append(_about(records, code, "ranks_contradict", text))
        else:
            kept[code] = own
    if not kept and notices:
        raise AnalysisError(notices[0].message, notices)
    return kept, notices


def _world(records: Records, pairs: Pairs) -> int | None:
    """Return the largest communicator that has every process; None if there is none."""
    everyone = {process for own in pairs.values() for process, _ in own}
    whole = [code for code, own in pairs.items() if {process for process, _ in own} == everyone]
    return max(whole, key=lambda code: records.groups[code].n_ranks, default=None)


def _numbering(records: Records, pairs: Pairs, world: int | None) -> Callable[[int, int, int], int | None]:
    """Return the function from communicator, process and rank in it to the rank of the job; None: not known."""
    members = [pair for code, own in pairs.items() for pair in own if world in (None, code)]
    everyone = sorted({process for process, _ in members}, key=records.processes.__getitem__)
    place = {process: at for at, process in enumerate(everyone)}
    if world is not None:
        place = dict(pairs[world])
    several = {
        process
        for code, own in pairs.items()
        if world in (None, code)
        for process, count in Counter(process for process, _ in own).items()
        if count > 1
    }

    def number(code: int, process: int, rank: int) -> int | None:
        return rank if code == world else None if process in several else place[process]

    return number


def _calls(records: Records, code: int, rows: Column, numbers: Mapping[int, int]) -> GroupCalls:
    """Return the calls of one communicator; `rows` are its records in order of kind, number and rank."""
    group = records.groups[code]
    own, contradicting = _each_once({name: column[rows] for name, column in records.columns.items()})
    first = np.flatnonzero(_changes(own, "kind", "seq"))
    count = np.diff(first, append=len(own["seq"]))
    complete = count == len(numbers)
    kept = np.repeat(complete, count)
    by_call = {name: column[kept].reshape(-1, len(numbers)) for name, column in own.items()}
    kind, timing = by_call["kind"][:, 0], by_call["timing"].max(axis=1, initial=0)
    even = np.array([collective_kind(word) in EVEN and word.lower() != _UNEVEN for word in records.kinds])
    agree = (by_call["bytes"] == by_call["bytes"][:, :1]).all(axis=1)
    usable = (by_call["us"] > 0).all(axis=1) & (timing < ENQUEUE) & (agree | ~even[kind])
    return GroupCalls(
        id=group.id,
        name=records.names.get(group.id),
        n_ranks=group.n_ranks,
        absent=sorted(set(range(group.n_ranks)) - set(numbers)),
        calls=TimedCalls(
            ranks=[numbers[rank] for rank in sorted(numbers)],
            group=[group.id] * int(usable.sum()),
            kind=[collective_kind(records.kinds[at]) for at in kind[usable].tolist()],
            bytes=[
                _payload(records.kinds[at], size, group.n_ranks) if equal else None
                for at, size, equal in zip(
                    kind[usable].tolist(), by_call["bytes"][usable, 0].tolist(), agree[usable].tolist(), strict=True
                )
            ],
            seq=by_call["seq"][usable, 0].tolist(),
            step=np.full(int(usable.sum()), -1),
            duration_ns=by_call["us"][usable].T * 1e3,
        ),
        timing=timing[usable],
        incomplete=int((~complete).sum()),
        unseen=_unseen(own["kind"][first], own["seq"][first]),
        unusable=int((~usable).sum()) + contradicting,
    )


def _changes(columns: Mapping[str, Column], *names: str) -> Column:
    """Return where a row differs from the one before it in any of these columns; the first row does."""
    changed = np.ones(len(columns[names[0]]), bool)
    changed[1:] = np.any([np.diff(columns[name]) != 0 for name in names], axis=0)
    return changed


def _each_once(columns: Mapping[str, Column]) -> tuple[dict[str, Column], int]:
    """Return the records without repetitions, and how many numbers of a rank have records that contradict each other.

    A repetition comes from a file that is there twice. None of several different records is known to be right.
    """
    start = _changes(columns, "kind", "seq", "rank")
    differs = _changes(columns, "kind", "seq", "rank", "bytes", "us", "timing") & ~start
    which = np.cumsum(start) - 1
    wrong = np.zeros(int(start.sum()), bool)
    wrong[which[differs]] = True
    kept = start & ~wrong[which]
    return {name: column[kept] for name, column in columns.items()}, int(wrong.sum())


def _unseen(kind: Column, seq: Column) -> int:
    """Return how many numbers are in no file, between the first and the last one of each kind."""
    found = 0
    for code in np.unique(kind):
        numbers = seq[kind == code]
        found += int(numbers[-1]) - int(numbers[0]) + 1 - len(numbers)
    return found


def _payload(word: str, size: int, ranks: int) -> int | None:
    """Return S of nccl-tests (bytes): Inspector writes NCCL's own size, of some kinds that of one rank's part."""
    if word.lower() == _UNEVEN:
        return None
    return size * ranks if collective_kind(word) in PER_PART else size
