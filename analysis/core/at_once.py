"""How many rows are in memory at a time where a trace may have millions of them."""

from collections.abc import Iterator

ROWS = 1 << 16


def pieces(count: int) -> Iterator[slice]:
    """Yield slices of at most `ROWS` rows that together are `count` rows."""
    return (slice(low, min(low + ROWS, count)) for low in range(0, count, ROWS))
