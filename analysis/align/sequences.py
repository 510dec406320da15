"""One rank's calls in one group, as a sequence that can be compared with another rank's."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rankscope.analysis.core.collective_kinds import EVEN, SYNCHRONISING
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.rank.rank_data import NO_STEP

_MAX_SHIFT = 256


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """Calls in order: their rows in the original table, and their properties (-1 or UNKNOWN if not known)."""

    rows: Column
    step: Column
    kind: Column
    nelems: Column
    bytes: Column  # UNKNOWN where the number of elements is known
    dtype: Column
    end: Column
    synchronising: Column
    left_over: Column  # whether the call is from before the first step

    @classmethod
    def of(cls, part: Table, rows: Column) -> "Sequence":
        """Return the calls at the given rows of one rank, in that order."""
        own = part.take(rows, "step", "kind", "in_nelems", "bytes", "dtype", "end", "left_over")
        even = own.where("kind", lambda word: word in EVEN)
        return cls(
            rows=rows,
            step=own["step"],
            kind=own["kind"],
            nelems=np.where(even, own["in_nelems"], UNKNOWN),
            bytes=np.where(even & (own["in_nelems"] == UNKNOWN), own["bytes"], UNKNOWN),
            dtype=own["dtype"],
            end=own["end"],
            synchronising=own.where("kind", lambda word: word in SYNCHRONISING),
            left_over=own["left_over"],
        )

    def take(self, chosen: Any) -> "Sequence":
        return Sequence(**{name: getattr(self, name)[chosen] for name in self.__dataclass_fields__})

    def before(self) -> "Sequence":
        """Return the calls left over from before the first step."""
        return self.take(self.left_over)

    def between(self) -> "Sequence":
        """Return the calls outside all steps that came after the first step began."""
        return self.take((self.step == NO_STEP) & ~self.left_over)

    def in_step(self, step: int) -> "Sequence":
        return self.take(self.step == step)

    def of_kind(self, kind: int) -> "Sequence":
        return self.take(self.kind == kind)

    @property
    def signatures(self) -> list[tuple[int, ...]]:
        """The properties that must agree between ranks: kind, element count, bytes, dtype."""
        columns = (self.kind, self.nelems, self.bytes, self.dtype)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def agrees(self, other: "Sequence") -> bool:
        """Return whether the two have the same length and no conflicting properties."""
        return len(self.rows) == len(other.rows) and not self._conflicts(other)

    def _conflicts(self, other: "Sequence") -> int:
        kind = (self.kind != other.kind) & (self.kind >= 0) & (other.kind >= 0)
        nelems = (self.nelems != other.nelems) & (self.nelems != UNKNOWN) & (other.nelems != UNKNOWN)
        nelems |= (self.bytes != other.bytes) & (self.bytes != UNKNOWN) & (other.bytes != UNKNOWN)
        dtype = (self.dtype != other.dtype) & (self.dtype >= 0) & (other.dtype >= 0)
        return int((kind | nelems | dtype).sum())


def best_shift(reference: Sequence, other: Sequence) -> int | None:
    """Return d such that call i of `other` is call i + d of `reference`; None if no shift fits.

    Among shifts without conflicts, take the one whose ends differ most evenly. A collective ends at one instant on all
    ranks, so the right pairing leaves a constant offset between the clocks and a wrong one does not.
    """
    n, m = len(reference.rows), len(other.rows)
    if not n or not m:
        return None
    scores = []
    for shift in range(max(-(m - 1), -_MAX_SHIFT), min(n, _MAX_SHIFT + 1)):
        low, high = max(0, shift), min(n, m + shift)
        count = high - low
        if count < (min(n, m) + 1) // 2:
            continue
        a, b = reference.take(slice(low, high)), other.take(slice(low - shift, high - shift))
        if a._conflicts(b):
            continue
        difference = (a.end - b.end)[a.synchronising] if a.synchronising.any() else a.end - b.end
        middle = np.sort(difference)[len(difference) // 2]
        spread = float(np.median(np.abs(difference - middle)))
        scores.append((spread / count, -count, abs(int(middle)), shift))
    return min(scores)[-1] if scores else None
