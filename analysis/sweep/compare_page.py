"""`compare.html`: two runs as curves, with what changed between them. Input: `Point`s. Output: text.

Each pair of points has its metrics with intervals, its settings and versions that differ, and the findings of both.
"""

from collections.abc import Sequence

import msgspec

from rankscope.analysis.core.json import Json
from rankscope.analysis.job.window import Window
from rankscope.analysis.read import pass_steps
from rankscope.analysis.show import pages
from rankscope.analysis.show.report.curve import plain_curve
from rankscope.analysis.show.report.job import machine_of
from rankscope.analysis.show.summary_schema import Summary
from rankscope.analysis.show.words import verdict_sentence
from rankscope.analysis.sweep.compare import Change, differences
from rankscope.analysis.sweep.points import Point
from rankscope.conf.typed_json import fits


def page(pairs: Sequence[tuple[Point, Point, Sequence[Change]]], alone: Sequence[str], broken: Sequence[str]) -> str:
    """Return the page; `alone` are lines about points without a partner, `broken` those about gates that fail."""
    shown = [_pair(a, b, changes) for a, b, changes in pairs]
    curves = [curve for curve in (_curve(point) for point in pairs[0][:2]) if curve is not None]
    return pages.render(
        "compare.html.jinja",
        title=f"{pairs[0][0].id} and {pairs[0][1].id}" if len(pairs) == 1 else f"{len(pairs)} pairs of points",
        pairs=shown,
        curves=curves if len(pairs) == 1 else [],
        alone=alone,
        broken=broken,
        data=pages.packed({"curves": curves if len(pairs) == 1 else [], "heat": None}),
    )


def _pair(a: Point, b: Point, changes: Sequence[Change]) -> Json:
    known = [change for change in changes if change.a is not None or change.b is not None]
    return {
        "title": f"{a.id} and {b.id}",
        "label": b.label,
        "sentence": _sentence(changes),
        "changes": [msgspec.structs.asdict(change) | {"is_noise": change.is_noise} for change in known],
        "verdicts": [(name, said) for name, point in (("A", a), ("B", b)) if (said := _verdict(point)) is not None],
        "settings": differences(a, b),
        "versions": _versions(a, b),
        "findings": _findings(a, b),
    }


def _summary(point: Point) -> Json:
    """Return a point's complete summary; empty if it is not of this version, or anybody's."""
    return point.summary if point.summary is not None and fits(point.summary, Summary) else {}


def _verdict(point: Point) -> str | None:
    try:
        return verdict_sentence(_summary(point))
    except (KeyError, TypeError, ValueError, IndexError):  # there is none, or it contradicts itself
        return None


def _sentence(changes: Sequence[Change]) -> str:
    """Say how the step changed, and whether that is more than noise."""
    step = next((change for change in changes if change.metric == "step_ms"), None)
    if step is None or step.ratio is None or step.a is None or step.b is None:
        return "The steps cannot be compared: one of the runs has no steps without a profiler."
    text = f"The median step went from {step.a:.2f} to {step.b:.2f} ms ({step.ratio - 1:+.1%}"
    if step.interval is None:
        return f"{text}); whether that is noise is unknown."
    text += f"; 95 %: {step.interval[0] - 1:+.1%} to {step.interval[1] - 1:+.1%})"
    return f"{text}: no difference beyond noise." if step.is_noise else f"{text}."


def _versions(a: Point, b: Point) -> list[tuple[str, str, str]]:
    before, after = ({} if point.run_dir is None else machine_of(point.run_dir) for point in (a, b))
    names = dict.fromkeys([*before, *after])
    return [
        (name, str(before.get(name) or "-"), str(after.get(name) or "-"))
        for name in names
        if before.get(name) != after.get(name)
    ]


def _findings(a: Point, b: Point) -> list[Json]:
    """Return a row for each finding of either run: its gain in both, None if unknown, absent if not found."""
    before, after = ({item["id"]: item for item in _summary(point).get("findings", [])} for point in (a, b))
    return [
        {"id": name.replace("_", " "), "a": _gain(before.get(name)), "b": _gain(after.get(name))}
        for name in dict.fromkeys([*before, *after])
    ]


def _gain(finding: Json | None) -> str:
    if finding is None:
        return "not found"
    return "gain unknown" if finding["recoverable_ms"] is None else f"{finding['recoverable_ms']:.2f} ms"


def _curve(point: Point) -> Json | None:
    plain = None if point.run_dir is None else pass_steps.read_pass(point.run_dir.for_pass("plain"), None)
    window = None if plain is None else Window.of(plain)
    return None if window is None else plain_curve(window, _summary(point)) | {"name": point.id}
