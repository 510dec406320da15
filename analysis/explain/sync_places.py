"""The calls in which the host waits for the device: which ones cost most, and where in the user's code they are."""

from typing import Any

from rankscope.analysis.core.units import estimate_ms
from rankscope.analysis.explain.facts import Facts

_SHOWN_PLACES = 3
_PLACE = ("call", "operator", "range", "function")


def costly_places(facts: Facts) -> list[dict[str, Any]]:
    """Return the calls with the most idle time behind them, with the operator, range and function around them."""
    assert facts.syncs is not None
    syncs = facts.syncs
    keys = list(zip(*(syncs.texts(name) for name in _PLACE), strict=True))
    sums: dict[tuple[str | None, ...], list[int]] = {}
    for key, count, idle in zip(keys, syncs["count"].tolist(), syncs["idle_ns"].tolist(), strict=True):
        total = sums.setdefault(key, [0, 0])
        total[0] += count
        total[1] += idle
    ordered = sorted(sums.items(), key=lambda item: -item[1][1])[:_SHOWN_PLACES]
    rows = max(1, len(facts.steps))
    return [
        {
            **dict(zip(_PLACE, key, strict=True)),
            "per_step": round(total[0] / rows, 2),
            "idle_ms": estimate_ms(total[1] / rows),
        }
        for key, total in ordered
    ]


def first_place(places: list[dict[str, Any]], of: str = "step") -> str:
    """Return the costliest place as text: the call, how often, and its operator, range and user function."""
    if not places:
        return "the trace does not name them"
    place = places[0]
    inside = [place[name] for name in _PLACE[1:] if place[name]]
    return f"{place['per_step']:g} per {of}, {place['call']}" + (f" in {', '.join(inside)}" if inside else "")


def ddp_times_itself(places: list[dict[str, Any]]) -> bool:
    """Return whether DDP causes the costliest wait: it reads its timers' events in the first ten steps of a job."""
    first = places[0] if places else {}
    return first.get("call") == "cudaEventSynchronize" and first.get("range") == "DistributedDataParallel.forward"
