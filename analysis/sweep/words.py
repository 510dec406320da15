"""Says in one sentence where a sweep loses time. Input: rows of the sweep's `summary.json`. Output: text."""

from collections.abc import Sequence

from rankscope.analysis.core.json import Json

_NAMED = 0.15  # share of the loss from which a part is named
_LITTLE = 0.02  # of the step: a smaller loss is not split


def headline(efficiency: Sequence[Json], waterfalls: Sequence[Json]) -> str | None:
    """Say how well the point with most ranks scales, and where the lost time goes; None without such a point."""
    known = [row for row in efficiency if row["weak"] is not None and row["world_size"] > 1]
    if not known:
        return None
    most = max(row["world_size"] for row in known)
    row = min((item for item in known if item["world_size"] == most), key=lambda item: item["weak"])
    interval = row["weak_interval"]
    between = f" ({interval[0]:.1%} to {interval[1]:.1%})" if interval else ""
    said = f"{row['label']}: weak efficiency {row['weak']:.1%}{between}"
    fall = next((item for item in waterfalls if item["id"] == row["id"] and item["kind"] == "weak"), None)
    if fall is None:
        return f"{said}; without traces of both points the loss cannot be split."
    lost = fall["measured_ms"] - fall["ideal_ms"]
    if lost < _LITTLE * fall["measured_ms"]:
        return f"{said}; less than 2 % of the step is lost."
    losses = {**fall["losses_ms"], "an_unknown_part": fall["rest_ms"]}
    parts = {name.replace("_", " "): ms for name, ms in losses.items()}
    named = sorted(((name, ms) for name, ms in parts.items() if ms >= _NAMED * lost), key=lambda item: -item[1])
    where = ", ".join(f"{name} takes {ms:.2f} ms" for name, ms in named) or "no part takes more than the others"
    return f"{said}. Of {lost:.2f} ms lost in each step, {where}."
