"""Puts the points of a graph into an order in which its edges go forward, and finds what its edges do not explain."""

import numpy as np

from rankscope.analysis.core.table import UNKNOWN, Column
from rankscope.analysis.replay.graph import Work

_BEFORE_END = 0.5  # ns: among points of one time, a record ends before the next starts


def rest(time: Column, edges: dict[str, Column]) -> Column:
    """Return by how much each edge's target was recorded later than all its edges say, because one was left out."""
    came = np.full(len(time), UNKNOWN)
    np.maximum.at(came, edges["target"], time[edges["source"]] + edges["weight"] + edges["delay"])
    return np.asarray((time - came)[edges["target"]])


def in_order(time: Column, edges: dict[str, Column]) -> tuple[Column, Column]:
    """Return the points in an order in which edges go forward, and the place of each.

    Of the points of one time, the ends of records come before starts, and collectives between their starts and ends.
    """
    key = (time - time.min()).astype(np.float64)
    work = edges["work"]
    ends = np.isin(work, [Work.COMPUTE, Work.COPY, Work.TRANSFER, Work.COMMUNICATION])
    lasted = ends & (edges["weight"] > 0)
    key[edges["target"][lasted]] -= _BEFORE_END
    key[edges["source"][work == Work.TRANSFER]] += _BEFORE_END / 2
    order = np.lexsort([np.arange(len(key)), key])
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return order, place
