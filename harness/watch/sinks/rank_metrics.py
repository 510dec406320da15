"""The numbers of all ranks as names and values, for logs that keep one run per job."""

import importlib.util
from typing import Any

import numpy as np

_EACH = 64  # ranks that have numbers of their own; of more the log has the range
_MISSING = "{} is not installed; pip install 'rankscope[{}]'"


def by_rank(stats: list[dict[str, float]]) -> dict[str, float]:
    """Return `rank_3/step_ms_p50` and so on; of many ranks `ranks/step_ms_p50_min`, `_median` and `_max`."""
    if len(stats) <= _EACH:
        return {f"rank_{rank}/{name}": value for rank, own in enumerate(stats) for name, value in own.items()}
    found: dict[str, float] = {}
    for name in stats[0]:
        values = [own[name] for own in stats]
        found |= {f"ranks/{name}_min": min(values), f"ranks/{name}_max": max(values)}
        found[f"ranks/{name}_median"] = float(np.median(values))
    return found


def of_rank_0(stats: dict[str, float | None]) -> dict[str, float]:
    """Return what only a rank itself knows, of rank 0."""
    known = {name: stats.get(name) for name in ("samples_per_s", "memory_peak_bytes")}
    return {f"rank_0/{name}": float(value) for name, value in known.items() if value is not None}


def late_rank(event: dict[str, object]) -> dict[str, float]:
    """Return the late rank after an event, -1 for none; nothing if the event is about something else."""
    if event["event"] not in ("late_rank", "recovered"):
        return {}
    rank = event.get("rank")
    return {"late_rank": float(rank) if event["event"] == "late_rank" and isinstance(rank, int) else -1.0}


def needed(package: str) -> None:
    """Raise `ImportError` that says which extra has a package, if it is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ImportError(_MISSING.format(package, package))


class RankMetrics:
    """What tools for experiments get: the statistics of every rank by step, and the last event."""

    def steps(self, lines: list[dict[str, Any]]) -> None:
        """Ignore single steps: the statistics of the window say enough."""

    def stats(self, stats: dict[str, Any]) -> None:
        self.log(stats["step"], of_rank_0(stats))

    def ranks(self, step: int, stats: list[dict[str, float]]) -> None:
        self.log(step, by_rank(stats))

    def event(self, event: dict[str, Any], text: str) -> None:
        self.log(event["step"], late_rank(event))
        self.last_event(text)

    def log(self, step: int, values: dict[str, float]) -> None:
        raise NotImplementedError

    def last_event(self, text: str) -> None:
        raise NotImplementedError
