"""How many rows are in memory at a time where a trace may have millions of them."""

ROWS = 1 << 16
