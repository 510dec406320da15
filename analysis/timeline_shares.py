"""How much of each bin of time each part covers: intervals in, shares out."""

import numpy as np

from rankscope.analysis.intervals import measure, union
from rankscope.analysis.table import Column


def shares(start: Column, end: Column, code: Column, codes: int, edges: Column) -> Column:
    """Return for each bin between `edges` how much of it each code covers: shape (codes, bins), 0 to 1."""
    result = np.zeros((codes, len(edges) - 1))
    for number in np.unique(code).tolist():
        chosen = code == number
        covered = measure(union(start[chosen], end[chosen]), edges[:-1], edges[1:])
        result[number] = covered / (edges[1:] - edges[:-1])
    return result
