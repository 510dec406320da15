"""The interactive timeline: one HTML file that opens offline. Input: `Timeline`s. Output: text.

The page holds the tables as gzipped columns (starts as differences, ns); `templates/timeline.js` draws them. A report
embeds the same part.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from rankscope.analysis.core.json import Json
from rankscope.analysis.core.record_kinds import COMMUNICATION
from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.analysis.show import pages
from rankscope.analysis.show.colours import COLOURS
from rankscope.analysis.show.timeline.build import NO_INTERVALS, RankView, Timeline
from rankscope.analysis.show.timeline.codes import EXPOSED_WAIT, HIDDEN_WAIT, NAMES, STRIP, WAIT, strip_codes
from rankscope.analysis.show.timeline.sentences import TITLES, step_name, step_sentence

_BINS = 600  # of a density, per step
_TOGETHER = 64  # folded ranks whose parts are summed at a time, so that they need little memory
_ON_DEMAND = 48  # further ranks that the page contains without showing them
_NAMED_KERNELS = 250_000  # with more records, the page does not contain single kernels


def page(timelines: Sequence[Timeline], step: int, headlines: Sequence[str]) -> str:
    """Return the page of a recording, or of two, one below the other."""
    return pages.render(
        "timeline.html.jinja",
        title=" and ".join(timeline.name for timeline in timelines),
        headlines=[(timeline.name, headline) for timeline, headline in zip(timelines, headlines, strict=True)],
        timeline=embedded(timelines, step),
    )


def embedded(timelines: Sequence[Timeline], step: int, only: int | None = None) -> Json:
    """Return what `_timeline.html.jinja` needs: the data as text, the script and style, the legend.

    With `only`, it contains only that step.
    """
    if only is not None:
        timelines = [msgspec.structs.replace(timeline, steps=[only]) for timeline in timelines]
    present = {int(code) for timeline in timelines for view in timeline.views for code in np.unique(view.parts["part"])}
    legend = [
        (COLOURS[name], TITLES[name], name == "exposed_wait") for code, name in enumerate(NAMES) if code in present
    ]
    if any(len(view.comm) and view.comm["hidden"].any() for timeline in timelines for view in timeline.views):
        legend.append((COLOURS["hidden_transfer"], "transfer hidden by compute", False))
        legend.append((COLOURS["hidden_wait"], "wait hidden by compute", True))
    return {
        "data": pages.packed(payload(timelines, step)),
        "script": pages.text_of("timeline.js").replace("//= timeline_tools.js\n", pages.text_of("timeline_tools.js")),
        "legend": legend,
        "critical": any(timeline.critical for timeline in timelines),
        "steps": [(number, step_name(number)) for number in _shared(timelines)],
        "step": step,
        "parts": [TITLES[name] for code, name in enumerate(NAMES) if code in present],
        "ranks": ", ".join(str(rank) for rank in timelines[0].shown[:3])
        + (", ..." if len(timelines[0].shown) > 3 else ""),
    }


def _shared(timelines: Sequence[Timeline]) -> list[int]:
    return sorted(set.intersection(*(set(timeline.steps) for timeline in timelines)))


def payload(timelines: Sequence[Timeline], step: int) -> Json:
    """Return the page's data as plain values; times are ns since each recording's first window."""
    present = sorted({int(code) for t in timelines for view in t.views for code in np.unique(view.parts["part"])})
    return {
        "step": step,
        "parts": [TITLES[name] for name in NAMES],
        "keys": list(NAMES),
        "columns": present,
        "colours": [COLOURS[name] for name in NAMES],
        "strip": [COLOURS[name] for name in STRIP],
        "waits": {"part": WAIT, "exposed": EXPOSED_WAIT, "hidden": HIDDEN_WAIT},  # drawn with stripes
        "runs": [_run(timeline, _shared(timelines)) for timeline in timelines],
    }


def _run(timeline: Timeline, steps: Sequence[int]) -> Json:
    origin = min(timeline.window(step)[0] for step in steps)
    words = _Words()
    named = sum(len(view.kernels) for view in timeline.rows) <= _NAMED_KERNELS
    rows = [_row(view, timeline, steps, origin, words, named=named) | {"shown": True} for view in timeline.rows]
    more = [_row(view, timeline, steps, origin, words, named=False) | {"shown": False} for view in _on_demand(timeline)]
    return {
        "name": timeline.name,
        "steps": [_step(timeline, step, origin) for step in steps],
        "rows": sorted([*rows, *more], key=lambda row: row["rank"]),
        "density": _density(timeline, steps, origin),
        "words": words.found,
        "device": timeline.device,
    }


def _on_demand(timeline: Timeline) -> list[RankView]:
    """Return the ranks that the page can add: of those without a row the latest ones, without single kernels."""
    worst = {
        view.rank: max((late.get(view.rank, 0) for late in timeline.lateness.values()), default=0)
        for view in timeline.folded
    }
    return sorted(timeline.folded, key=lambda view: -worst[view.rank])[:_ON_DEMAND]


def _step(timeline: Timeline, step: int, origin: int) -> Json:
    start, end = timeline.window(step)
    mark = timeline.marks.get(step)
    return {
        "step": step,
        "start": start - origin,
        "end": end - origin,
        "sentence": step_sentence(timeline, step),
        "mark": None
        if mark is None
        else {
            "rank": mark.rank,
            "call": mark.call,
            "start": mark.start - origin,
            "others": mark.others - origin,
            "late": mark.late,
            "cause": mark.cause,
        },
    }


class _Words:
    """Numbers strings in order of appearance."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._codes: dict[str, int] = {}

    def of(self, table: Table, name: str) -> list[int]:
        """Return a coded column in the codes of the page; -1 for unknown."""
        codes = table[name]
        lookup = {}
        for code in np.unique(codes[codes >= 0]).tolist():
            word = table.words[name][code]
            if word not in self._codes:
                self._codes[word] = len(self.found)
                self.found.append(word)
            lookup[code] = self._codes[word]
        return [lookup.get(code, -1) for code in codes.tolist()]


def _row(view: RankView, timeline: Timeline, steps: Sequence[int], origin: int, words: _Words, *, named: bool) -> Json:
    bounds = [window for step in steps if (window := view.window(step)) is not None]
    first = min((start for start, _ in bounds), default=0)
    last = max((end for _, end in bounds), default=0)

    def within(table: Table) -> Table:
        return table.take((table["end"] > first) & (table["start"] < last)).sort("start")

    parts = view.parts.take(np.isin(view.parts["step"], steps))
    comm, calls = within(view.comm), within(view.calls)
    ranges, host = within(view.ranges), within(view.host_ranges)
    kernels = within(view.kernels) if named else NO_INTERVALS
    if len(kernels):
        kernels = kernels.take(kernels["role"] != COMMUNICATION)
    unsplit = calls["ready"] == UNKNOWN
    return {
        "rank": view.rank,
        "windows": [_window(view, step, origin) for step in steps],
        "lateness": [_late(timeline, step, view.rank) for step in steps],
        "parts": _columns(parts, origin) | {"c": parts["part"].tolist()},
        "comm": _columns(comm, origin) | {"c": strip_codes(comm).tolist()},
        "calls": _columns(calls, origin)
        | {
            "w": np.where(unsplit, -1, calls["ready"] - calls["start"]).tolist(),
            "k": words.of(calls, "kind"),
            "g": words.of(calls, "group"),
            "b": np.where(calls["bytes"] == UNKNOWN, -1, calls["bytes"]).tolist(),
            "n": calls["call"].tolist(),
            "x": calls["exposed"].tolist(),
            "l": [None if value == UNKNOWN else value for value in calls["lateness"].tolist()],
        },
        "ranges": _columns(ranges, origin) | {"n": words.of(ranges, "name")},
        "host": _columns(host, origin) | {"n": words.of(host, "name")},
        "kernels": _columns(kernels, origin) | {"n": words.of(kernels, "name")},
        "critical": _columns(within(timeline.critical.get(view.rank, NO_INTERVALS)), origin),
    }


def _window(view: RankView, step: int, origin: int) -> list[int] | None:
    window = view.window(step)
    return None if window is None else [window[0] - origin, window[1] - origin]


def _late(timeline: Timeline, step: int, rank: int) -> int | None:
    return timeline.lateness.get(step, {}).get(rank)


def _columns(table: Table, origin: int) -> Json:
    """Return starts as differences to the previous start, and lengths."""
    starts = np.diff(table["start"] - origin, prepend=0)
    return {"s": starts.tolist(), "d": (table["end"] - table["start"]).tolist()}


def _density(timeline: Timeline, steps: Sequence[int], origin: int) -> Json | None:
    """Return the mean shares of the folded ranks: per step and bin the share (in thousandths) of every part."""
    if not timeline.folded:
        return None
    from rankscope.analysis.show.timeline.tiles import summed

    found = []
    for step in steps:
        start, end = timeline.window(step)
        edges = np.unique(np.linspace(start, end, _BINS + 1).astype(np.int64))
        taken = np.zeros((len(NAMES), len(edges) - 1), np.int64)
        for first in range(0, len(timeline.folded), _TOGETHER):
            views = timeline.folded[first : first + _TOGETHER]
            own = Table.concat([view.parts.take(view.parts["step"] == step) for view in views])
            taken += summed(own["start"] - start, own["end"] - start, own["part"], len(NAMES), edges - start)
        mean = taken / (np.diff(edges) * len(timeline.folded))
        shared = np.rint(mean * 1000).astype(int)
        found.append({"start": start - origin, "end": end - origin, "shares": shared.T.tolist()})
    return {"ranks": len(timeline.folded), "steps": found}
