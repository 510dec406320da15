"""Prints a prediction in a terminal of 80 columns. Input: `Prediction`. Output: rich renderables."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from rankscope.analysis.replay.critical_path import Share
from rankscope.analysis.replay.predict import Prediction

_WORK = {
    "host": "host: code between runtime calls",
    "loader": "waiting for a batch",
    "launch": "inside runtime calls",
    "latency": "from a launch or record to the next start",
    "compute": "compute",
    "copy": "copies",
    "transfer": "transfer of collectives",
    "communication": "communication, wait and transfer",
    "sync": "return from synchronising calls",
    "memory": "host after a copy: its memory, or code",
    "unexplained": "idle, nothing recorded says why",
}
_LEAST = 0.005  # of the step: rows below are summed
_SHOWN = 12


def show(found: Prediction) -> Group:
    """Return the sentences and the table of the critical path."""
    lines = [Text(headline(found), style="bold"), Text(_basis(found)), *(Text(f"Note: {note}") for note in found.notes)]
    return Group(*lines, Text(), _table(found))


def headline(found: Prediction) -> str:
    """Return the prediction, or without changes the step, as a sentence."""
    how = "without a profiler" if found.plain else "as traced"
    if not found.changes:
        return f"A step takes {found.step_ms:.2f} ms {how}; its critical path:"
    share = 1 - found.predicted_ms / found.step_ms
    less = "less" if share >= 0 else "more"
    return (
        f"With {', '.join(found.changes)} a step takes about {found.predicted_ms:.2f} ms ({found.low_ms:.2f} to "
        f"{found.high_ms:.2f}) instead of {found.step_ms:.2f} ms {how}: {abs(share):.1%} {less}."
    )


def _basis(found: Prediction) -> str:
    """Say what the prediction rests on."""
    parts = [f"The replay of the recorded work gives {found.replayed_ms:.2f} of {found.traced_ms:.2f} traced ms."]
    if found.host_factor is not None:
        parts.append(f"The host's work counts {found.host_factor:.2f} times, so that the replay gives the plain step.")
    if found.contention:
        parts.append(f"Compute takes {found.contention:.0%} longer beside communication.")
    return " ".join(parts)


def _table(found: Prediction) -> Table:
    """Return the critical path per kind of work and rank, before and after."""
    table = Table(title="Critical path, ms per step", title_justify="left", box=None, padding=(0, 1), title_style="")
    for name in ("rank", "work"):
        table.add_column(name, justify="right" if name == "rank" else "left")
    table.add_column("now", justify="right")
    if found.changes:
        table.add_column("then", justify="right")
    before, after = _by_key(found.before), _by_key(found.after)
    keys = sorted(before.keys() | after.keys(), key=lambda key: -max(before.get(key, 0.0), after.get(key, 0.0)))
    least = _LEAST * found.step_ms
    shown = [key for key in keys if max(before.get(key, 0.0), after.get(key, 0.0)) >= least][:_SHOWN]
    rows = [((str(rank), _WORK.get(work, work)), (work, rank)) for work, rank in shown]
    for words, key in rows:
        table.add_row(*words, *_numbers(before.get(key, 0.0), after.get(key, 0.0), found))
    rest = [key for key in keys if key not in shown]
    if rest:
        sums = [sum(side.get(key, 0.0) for key in rest) for side in (before, after)]
        table.add_row("", "all other", *_numbers(sums[0], sums[1], found))
    return table


def _numbers(before: float, after: float, found: Prediction) -> list[str]:
    return [f"{before:.2f}", f"{after:.2f}"] if found.changes else [f"{before:.2f}"]


def _by_key(shares: list[Share]) -> dict[tuple[str, int | None], float]:
    return {(share.work, share.rank): share.ms for share in shares}
