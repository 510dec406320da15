"""Estimates one clock for all ranks from the times at which collectives end, and the remaining error.

Input: matched calls (from `match.match`) in each rank's own time. Output: an `Alignment`, which converts a rank's time
into common time. A unit is a host if the hosts are known (its ranks share a clock), otherwise a rank.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rankscope.analysis.align.probes import Probed, probed, shared_clock_error
from rankscope.analysis.core import group_by
from rankscope.analysis.core.collective_kinds import SYNCHRONISING
from rankscope.analysis.core.table import Column, Table
from rankscope.analysis.rank.rank_data import RankData

_ROUNDS = 4  # of alternating medians; pairwise medians are the starting point
_MIN_POINTS = 20  # collectives needed to estimate a drift
_BLOCKS = 8
_SIGNIFICANT = 5.0  # standard errors above which a drift is corrected; below, correcting it would add noise


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Offsets and drifts of each rank against the reference rank, and how far they can be trusted."""

    method: str  # shared_clock | collective_ends | probes | none
    reference_rank: int
    offset_ns: dict[int, int]  # this rank's clock minus the reference's, at `origin`
    drift: dict[int, float]  # ns per ns; absent if the window is too short to estimate it
    origin: int  # ns on the reference clock
    unaligned: frozenset[int] = frozenset()  # ranks that share no synchronising collective with the reference
    residual_ns: Column = field(default_factory=lambda: np.zeros(0, np.int64))  # |own end - median of the others'|
    spread_ns: Column = field(default_factory=lambda: np.zeros(0, np.int64))  # latest minus earliest end of each call
    feasible_width_ns: int | None = None  # offset range that causality allows, for the rank with the largest range
    causality_violations: int = 0  # calls in which a rank starts after another has ended
    clock_error_ns: int | None = None  # error of the clock according to the probes, if ends of collectives are loose
    probed: dict[int, Probed] = field(default_factory=dict)  # the clocks by the probes, whichever method was used

    def to_common(self, rank: int, times: Column) -> Column:
        """Convert times of a rank's clock (ns) into the reference's (ns)."""
        shifted: Column = times - self.offset_ns.get(rank, 0)
        drift = self.drift.get(rank, 0.0)
        if drift:
            shifted = shifted - np.rint((shifted - self.origin) * drift).astype(np.int64)
        return shifted

    def disagreements(self) -> dict[int, tuple[int, int]]:
        """Return the ranks whose probes and collectives differ by more than their errors: (difference, errors) ns."""
        found = {}
        for rank, clock in self.probed.items() if self.method == "collective_ends" else ():
            differs = abs(self.offset_ns.get(rank, 0) - clock.at(self.origin + clock.offset_ns))
            limit = clock.error_ns + (self.bound_ns or 0)
            if differs > limit:
                found[rank] = differs, limit
        return found

    @property
    def bound_ns(self) -> int | None:
        """The error bound: from the probes of a shared clock, otherwise p95 of the residual; None without either."""
        if self.clock_error_ns is not None:
            return self.clock_error_ns
        return int(np.percentile(self.residual_ns, 95)) if len(self.residual_ns) else None


def align(calls: Table, ranks: Sequence[RankData]) -> Alignment:
    """Estimate every rank's clock from the ends of the matched, synchronising collectives of two or more ranks."""
    numbers = [data.rank for data in ranks]
    reference = min(numbers)
    unit_of, method = _units(ranks)
    kinds = calls.where("kind", lambda word: word in SYNCHRONISING)
    ends = calls.take((calls["call"] >= 0) & kinds)
    ends = ends.take(group_by.sizes(ends["call"]) >= 2) if len(ends) else ends
    if not len(ends):
        return Alignment(method="none", reference_rank=reference, offset_ns={}, drift={}, origin=0)
    unit = np.array([unit_of[rank] for rank in ends["rank"].tolist()])
    call = np.cumsum(np.diff(ends["call"], prepend=ends["call"][0]) != 0)
    units = max(unit_of.values()) + 1
    offset, reached = _offsets(ends["end"], call, unit, units, unit_of[reference])
    origin = int(np.sort(ends["end"] - offset[unit])[len(unit) // 2])
    drift = _drifts(ends["end"] - offset[unit], call, unit, units, unit_of[reference]) if units > 1 else {}
    if drift:  # without the drift, the offsets were its value in the middle of the window, but only roughly
        slopes = np.array([drift.get(number, 0.0) for number in range(units)])
        rest = ends["end"] - offset[unit] - origin
        rest = rest - np.rint(rest * slopes[unit]).astype(np.int64)
        offset = offset + group_by.median(rest - group_by.median(rest, call, int(call[-1]) + 1)[call], unit, units)
        offset = offset - offset[unit_of[reference]]
    alignment = Alignment(
        method=method,
        reference_rank=reference,
        offset_ns={rank: int(offset[unit_of[rank]]) for rank in numbers},
        drift={rank: drift[unit_of[rank]] for rank in numbers if unit_of[rank] in drift},
        origin=origin,
        unaligned=frozenset(rank for rank in numbers if not reached[unit_of[rank]]),
        clock_error_ns=_probed(ranks) if method == "shared_clock" else None,
    )
    judged = _judged(alignment, ends, call)
    clocks = probed(ranks)
    chosen = _by_probes(judged, ranks, clocks)
    if chosen is not judged:
        chosen = _judged(chosen, ends, call)
    return replace(chosen, probed=clocks)


def _units(ranks: Sequence[RankData]) -> tuple[dict[int, int], str]:
    hosts = [data.host_id for data in ranks]
    if any(host is None for host in hosts):
        return {data.rank: index for index, data in enumerate(ranks)}, "collective_ends"
    index = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    return {data.rank: index[data.host_id] for data in ranks}, "shared_clock" if len(index) == 1 else "collective_ends"


def _probed(ranks: Sequence[RankData]) -> int | None:
    """Return the error of a shared clock from its probes (ns); None for GPU records: their stamps add an error."""
    return shared_clock_error(ranks) if all(data.mode == "cpu" for data in ranks) else None


def _by_probes(alignment: Alignment, ranks: Sequence[RankData], clocks: dict[int, Probed]) -> Alignment:
    """Return the clocks of several hosts from their probes, if the probes' error is below that of collective ends.

    This is the case for gloo, whose ends are loose. GPU timestamps have an error of their own, so for them only the
    ends of collectives are used.
    """
    bound = alignment.bound_ns
    error = max((clock.error_ns for clock in clocks.values()), default=0)
    several = alignment.method == "collective_ends" and any(clock.offset_ns or clock.drift for clock in clocks.values())
    if not several or bound is None or error >= bound or any(data.mode != "cpu" for data in ranks):
        return alignment
    return replace(
        alignment,
        method="probes",
        offset_ns={rank: clock.at(alignment.origin + clock.offset_ns) for rank, clock in clocks.items()},
        drift={rank: clock.drift for rank, clock in clocks.items() if clock.drift},
        unaligned=frozenset(),
        clock_error_ns=error,
    )


def _offsets(end: Column, call: Column, unit: Column, units: int, reference: int) -> tuple[Column, Column]:
    """Return each unit's offset (ns) against the reference unit, and whether a chain of calls links the two."""
    offset, reached = _walk(_edges(end, call, unit, units), units, reference)
    if units > 1:
        calls = int(call[-1]) + 1
        for _ in range(_ROUNDS):
            instant = group_by.median(end - offset[unit], call, calls)
            offset = group_by.median(end - instant[call], unit, units)
            offset = offset - offset[reference]
    return offset, reached


def _edges(end: Column, call: Column, unit: Column, units: int) -> dict[int, dict[int, int]]:
    """Return the median difference of ends between units that share a call: edges[a][b] = clock b - clock a."""
    first = group_by.starts_of(call)
    base = first[call]
    other = unit != unit[base]
    pair, index = np.unique(unit[base][other] * units + unit[other], return_inverse=True)
    middle = group_by.median((end - end[base])[other], index, len(pair))
    edges: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for key, difference in zip(pair.tolist(), middle.tolist(), strict=True):
        a, b = divmod(key, units)
        edges[a][b], edges[b][a] = difference, -difference
    return edges


def _walk(edges: dict[int, dict[int, int]], units: int, reference: int) -> tuple[Column, Column]:
    """Add up the edges from the reference outwards (breadth first)."""
    offset, reached = np.zeros(units, np.int64), np.zeros(units, bool)
    reached[reference] = True
    queue = deque([reference])
    while queue:
        unit = queue.popleft()
        for neighbour, difference in edges.get(unit, {}).items():
            if not reached[neighbour]:
                reached[neighbour] = True
                offset[neighbour] = offset[unit] + difference
                queue.append(neighbour)
    return offset, reached


def _drifts(end: Column, call: Column, unit: Column, units: int, reference: int) -> dict[int, float]:
    """Return the drift of each unit against the reference unit, if the window is long enough to estimate it."""
    instant = group_by.median(end, call, int(call[-1]) + 1)[call]
    slopes = _slopes((instant - instant[0]).astype(float), (end - instant).astype(float), unit, units)
    if reference not in slopes:
        return {}
    drifts = {}
    for number, (slope, error) in slopes.items():
        relative, uncertainty = slope - slopes[reference][0], np.hypot(error, slopes[reference][1])
        if number != reference and abs(relative) > _SIGNIFICANT * uncertainty:
            drifts[number] = relative
    return drifts


def _slopes(x: Column, y: Column, unit: Column, units: int) -> dict[int, tuple[float, float]]:
    """Return a robust slope and its standard error of each unit; units with too few points are left out.

    Ends within a step have correlated errors, so single points would make the error look too small. Instead, medians of
    blocks in time are compared (Theil-Sen), and their residuals from the line give the error.
    """
    order = np.lexsort([x, unit])
    unit = unit[order]
    begin = group_by.starts_of(unit)
    count = np.diff(np.append(begin, len(unit)))
    place, points = np.arange(len(unit)) - np.repeat(begin, count), np.repeat(count, count)
    known = points >= _MIN_POINTS
    key = (unit * _BLOCKS + _block(place, points))[known]
    x, y = (group_by.median(values[order][known], key, units * _BLOCKS).reshape(units, _BLOCKS) for values in (x, y))
    i, j = np.triu_indices(_BLOCKS, 1)
    slope = np.median((y[:, j] - y[:, i]) / np.maximum(x[:, j] - x[:, i], 1.0), axis=1)
    rest = y - slope[:, None] * x
    noise = np.sqrt(((rest - np.median(rest, axis=1, keepdims=True)) ** 2).sum(axis=1) / (_BLOCKS - 2))
    error = noise / (np.sqrt(_BLOCKS) * np.maximum(x.std(axis=1), 1.0))
    return {number: (float(slope[number]), float(error[number])) for number in np.unique(unit[known]).tolist()}


def _block(place: Column, points: Column) -> Column:
    """Return the block of each of `points` in order, as `np.array_split` makes them: the first ones have one more."""
    each, more = np.divmod(points, _BLOCKS)
    in_larger = more * (each + 1)
    block: Column = np.where(place < in_larger, place // (each + 1), more + (place - in_larger) // np.maximum(each, 1))
    return block


def _judged(alignment: Alignment, ends: Table, call: Column) -> Alignment:
    """Fill in what the alignment leaves: residuals, spread, violations of causality."""
    start, end = on_common_clock(alignment, ends)
    latest, earliest = group_by.highest(start, call), group_by.lowest(end, call)
    first = group_by.starts_of(call)
    at_reference = ends["rank"] == alignment.reference_rank
    known = np.zeros(int(call[-1]) + 1, bool)
    known[call[at_reference]] = True
    ref_start, ref_end = np.zeros(len(known), np.int64), np.zeros(len(known), np.int64)
    ref_start[call[at_reference]], ref_end[call[at_reference]] = start[at_reference], end[at_reference]
    widths = []
    for rank, rows in group_by.positions(ends["rank"]).items():
        rows = rows[known[call[rows]]]
        if len(rows) and rank != alignment.reference_rank:
            widths.append(int((end[rows] - ref_start[call[rows]]).min() - (start[rows] - ref_end[call[rows]]).max()))
    return replace(
        alignment,
        residual_ns=np.abs(end - group_by.median_of_others(end, call)),
        spread_ns=(group_by.highest(end, call) - earliest)[first],
        feasible_width_ns=max(widths, default=None),
        causality_violations=int((latest > earliest)[first].sum()),
    )


def on_common_clock(alignment: Alignment, table: Table) -> tuple[Column, Column]:
    """Return start and end of each row of a table with a `rank` column, on the common clock (ns)."""
    start, end = table["start"].copy(), table["end"].copy()
    for rank, rows in group_by.positions(table["rank"]).items():
        start[rows] = alignment.to_common(rank, start[rows])
        end[rows] = alignment.to_common(rank, end[rows])
    return start, end
