"""Says why a job hangs: which ranks did not come to which collective, or which calls do not fit together.

Input: the dumps of the ranks. Output: `Hang`. Ranks wait for one another along groups: a rank that is missing in one
group may itself wait in another, so only missing ranks that wait nowhere block the job. If ranks wait in a circle, they
called their groups in different orders. Without a rank's dump nothing is concluded about what that rank does.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from rankscope.analysis.core.collective_kinds import EVEN, collective_kind
from rankscope.analysis.hang.dumps import Call, Dump, Left

Cause = Literal["missing_rank", "different_call", "different_order", "no_dump", "transport", "nothing_waits"]
_EVEN = (
    "all_reduce",
    "allreduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "_all_gather_base",
    "_reduce_scatter_base",
)


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """The first collective of a group that is not done on some rank."""

    group: str
    name: str  # what the job calls the group
    seq: int
    kind: str
    members: list[int]
    waiting: list[int]
    missing: list[int]  # left a dump without this call
    unknown: list[int]  # left no dump
    odd: list[int]  # called something else with the same number
    odd_kind: str | None = None
    usual_sizes: str = ""  # of the others' call, as words
    even_split: bool = False  # as many ranks called the one as the other, so either may be wrong
    swapped: bool = False  # the odd ranks made the same calls in another order


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job hangs. `ranks` block the others; `certain` is false if dumps are missing that could say otherwise."""

    cause: Cause
    ranks: list[int]
    group: str | None
    seq: int | None
    kind: str | None
    certain: bool
    places: dict[int, str]  # what the blocking ranks did instead
    pending: list[Pending]
    no_dump: list[int]
    lines: list[str]  # the conclusion in words


def judge(left: Left) -> Hang:
    """Return why the ranks wait."""
    known = {*left.dumps, *(rank for dump in left.dumps.values() for listed in dump.groups.values() for rank in listed)}
    ranks = list(range(max(known) + 1))
    no_dump = [rank for rank in ranks if rank not in left.dumps]
    pending = _pending(left.dumps, ranks)
    cause, chosen, blocking = _cause(pending, no_dump)
    lines = _words(cause, chosen, blocking, left)
    if no_dump and cause != "no_dump":
        lines.append(f"{_named(no_dump)} left no dump, so this may not be all.")
    return Hang(
        cause=cause,
        ranks=blocking,
        group=None if chosen is None else chosen.group,
        seq=None if chosen is None else chosen.seq,
        kind=None if chosen is None else chosen.kind,
        certain=not no_dump and cause not in ("transport", "nothing_waits"),
        places={rank: place for rank in blocking if (place := left.places.get(rank))},
        pending=pending,
        no_dump=no_dump,
        lines=[*lines, *(f"Not read: {text}" for text in left.unread)],
    )


def _pending(dumps: dict[int, Dump], ranks: Sequence[int]) -> list[Pending]:
    """Return the first open collective of each group. A group whose ranks no dump lists may have all ranks."""
    listed: dict[str, list[int]] = {}
    for dump in dumps.values():
        listed = dump.groups | listed
    found = []
    for name in sorted({*listed, *(name for dump in dumps.values() for name in dump.calls)}):
        members = sorted(listed.get(name) or ranks)
        calls = {rank: dumps[rank].calls.get(name, {}) for rank in members if rank in dumps}
        first = _first_open(calls)
        if first is not None:
            unknown = [rank for rank in members if rank not in dumps]
            told = next((dump.names[name] for dump in dumps.values() if dump.names.get(name)), "")
            found.append(_look(name, told, first, calls, members, unknown))
    return found


def _first_open(calls: dict[int, dict[int, Call]]) -> int | None:
    """Return the lowest number at which the ranks' calls differ or are not done; None if all are done."""
    numbers = sorted({seq for own in calls.values() for seq in own})
    for seq in numbers:
        present = [own[seq] for own in calls.values() if seq in own]
        if len({_signature(call) for call in present}) > 1 or not all(call.done for call in present):
            return seq
    return None


def _signature(call: Call) -> tuple[str, ...]:
    return (call.kind, call.dtype, call.sizes if collective_kind(call.kind) in EVEN else "")


def _look(
    group: str, told: str, seq: int, calls: dict[int, dict[int, Call]], members: list[int], unknown: list[int]
) -> Pending:
    present = {rank: own[seq] for rank, own in calls.items() if seq in own}
    usual, _ = Counter(_signature(call) for call in present.values()).most_common(1)[0]
    odd = [rank for rank, call in present.items() if _signature(call) != usual]
    first = next(call for call in present.values() if _signature(call) == usual)
    # a rank whose buffer begins later made this call long ago
    missing = [rank for rank, own in calls.items() if seq not in own and not (own and min(own) > seq)]
    return Pending(
        group=group,
        name=told,
        seq=seq,
        kind=first.kind,
        members=members,
        waiting=[rank for rank in present if rank not in odd and not present[rank].done],
        missing=missing,
        unknown=unknown,
        odd=odd,
        odd_kind=f"{present[odd[0]].kind} of {present[odd[0]].sizes}" if odd else None,
        usual_sizes=f" with {first.sizes}" if odd and first.sizes else "",
        even_split=2 * len(odd) >= len(present),
        swapped=bool(odd) and _swapped(calls, seq, odd, usual),
    )


def _swapped(calls: dict[int, dict[int, Call]], seq: int, odd: Sequence[int], usual: tuple[str, ...]) -> bool:
    """Return whether the others' next calls are what the odd ranks have called now."""
    now = {_signature(calls[rank][seq]) for rank in odd}
    later = {_signature(own[seq + 1]) for rank, own in calls.items() if rank not in odd and seq + 1 in own}
    theirs = {_signature(calls[rank][seq + 1]) for rank in odd if seq + 1 in calls[rank]}
    return bool(now & later) or usual in theirs


def _cause(pending: Sequence[Pending], no_dump: list[int]) -> tuple[Cause, Pending | None, list[int]]:
    if not pending:
        return ("no_dump" if no_dump else "nothing_waits"), None, no_dump
    for item in pending:
        if item.odd:
            cause: Cause = "different_order" if item.swapped else "different_call"
            called = sorted(set(item.members) - {*item.missing, *item.unknown})
            return cause, item, called if item.even_split else item.odd
    waiting = {rank for item in pending for rank in item.waiting}
    for item in pending:
        blocking = [rank for rank in item.missing if rank not in waiting]
        if blocking:
            return "missing_rank", item, blocking
    for item in pending:
        if item.unknown:
            return "no_dump", item, item.unknown
    circle = [item for item in pending if item.missing]
    if circle:  # every missing rank waits in another group
        return "different_order", circle[0], circle[0].missing
    return "transport", pending[0], []


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:16])) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
    return f"Rank {shown}" if len(ranks) == 1 else f"Ranks {shown}"


def _words(cause: Cause, item: Pending | None, ranks: Sequence[int], left: Left) -> list[str]:
    if item is None and ranks:
        return [f"{_named(ranks)} left no dump, and no other rank waits in a collective: it may have crashed."]
    if item is None:
        return ["No collective is open: the ranks do not wait for one another, or they wait outside of collectives."]
    told = f" ({item.name})" if item.name else ""
    call = f"{item.kind} number {item.seq} of group {item.group}{told}"
    waits = f"{_named(item.waiting)} wait{'s' if len(item.waiting) == 1 else ''} in {call}."
    lines = [waits] if item.waiting else []
    if cause == "missing_rank":
        lines.insert(0, f"{_named(ranks)} did not come to {call}.")
    elif cause == "no_dump":
        one = len(ranks) == 1
        how = "it crashed, or does not answer" if one else "they crashed, or do not answer"
        dump = "no dump that can be read" if left.unread else "no dump"
        lines.insert(0, f"{_named(ranks)} left {dump}, and {call} lacks {'it' if one else 'them'}: {how}.")
    elif item.odd:
        how = "made calls in another order:" if cause == "different_order" else "called"
        told = f"{_named(item.odd)} {how} {item.odd_kind} as number {item.seq}"
        others = "the other rank" if len(item.waiting) == 1 else "the others"
        lines.insert(0, f"{told}, while {others} called {call}{item.usual_sizes}.")
    elif cause == "different_order":
        who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:16]))}"
        lines.insert(0, f"Ranks wait in a circle: {call} lacks {who}, waiting in another group.")
    else:
        lines.insert(0, f"All ranks came to {call}, and it does not end: look at the network and the devices.")
    if item.odd and item.even_split:
        lines.append("As many ranks called the one as the other, so either may be wrong.")
    for rank in ranks[:16]:
        if place := left.places.get(rank):
            lines.append(f"Rank {rank} is at {place}.")
    return lines
