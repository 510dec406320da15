"""The user's ranges (forward, backward, ...) of one rank, on the CPU and projected onto the device.

Input: the host's records and the device records of a rank. Output: tables of start, end, name, on the rank's own clock.
"""

import re

import numpy as np

from rankscope.analysis.core.collective_kinds import is_of_collective
from rankscope.analysis.core.name_patterns import found_in, remembered
from rankscope.analysis.core.record_kinds import COMMUNICATION
from rankscope.analysis.core.table import UNKNOWN, Table, encode
from rankscope.analysis.read.rank_trace import end_of

_STEP = re.compile(r"ProfilerStep\s*#", re.IGNORECASE)
_MARK = found_in(re.compile("ProfilerStep"))
_MACHINERY = re.compile(r"enumerate\((?:DataLoader|DataPipe)\)#.*|Optimizer\.(step|zero_grad)#.*")


def host_ranges(host: Table) -> Table:
    """Return the outermost annotations on the thread of the steps (start, end, name), without nested ones."""
    named = host.where("name", _is_range)
    chosen = named & (host["annotation"] != 0) & (host["start"] != UNKNOWN) & (host["duration"] > 0)
    steps = host.where("name", _MARK)
    if steps.any():
        chosen &= host["thread"] == host["thread"][np.flatnonzero(steps)[0]]
    rows = host.take(chosen, "start", "duration", "name")
    table = Table({"start": rows["start"], "end": end_of(rows), "name": rows["name"]})
    table = table.take(np.lexsort([-table["end"], table["start"]]))
    reached = np.maximum.accumulate(table["end"]) if len(table) else table["end"]
    outermost = np.ones(len(table), bool)
    outermost[1:] = table["start"][1:] >= reached[:-1]
    table = Table(table.take(outermost).columns, {"name": host.words["name"]})
    names, words = encode([_MACHINERY.sub(_short, word or "") for word in table.texts("name")])
    return Table({**table.columns, "name": names}, {"name": words})


@remembered
def _is_range(name: str) -> bool:
    return _STEP.match(name) is None and not is_of_collective(name)


def on_device(kernels: Table, ranges: Table) -> Table:
    """Return each range from the start of the first record that it launched to the end of the last one.

    Communication does not count, because it may still run when later ranges begin. Ranges that launched nothing are
    dropped. A range that begins before its predecessor ends is shortened, so that ranges do not overlap.
    """
    wanted = (kernels["role"] != COMMUNICATION) & (kernels["launch_start"] != UNKNOWN)
    work = kernels.take(wanted, "start", "end", "launch_start").sort("launch_start")
    low = np.searchsorted(work["launch_start"], ranges["start"])
    high = np.searchsorted(work["launch_start"], ranges["end"])
    found = np.flatnonzero(high > low)
    start = np.array([work["start"][a:b].min() for a, b in zip(low[found], high[found], strict=True)], np.int64)
    end = np.array([work["end"][a:b].max() for a, b in zip(low[found], high[found], strict=True)], np.int64)
    if len(found):
        start[1:] = np.maximum(start[1:], np.maximum.accumulate(end)[:-1])
    kept = end > start
    return Table({"start": start[kept], "end": end[kept], "name": ranges["name"][found][kept]}, ranges.words)


def _short(match: re.Match[str]) -> str:
    return f"optimizer {match[1]}" if match[1] else "data loader"
