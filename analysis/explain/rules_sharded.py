"""Rules about the all-gathers of sharded data parallelism: gathered too late, and gathered again."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankscope.analysis.core import group_by
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.core.units import estimate_ms
from rankscope.analysis.explain.facts import Facts
from rankscope.analysis.explain.rule import Advice, Claim, Mended, Rule


def _late_prefetch(facts: Facts, limits: Limits) -> Claim | None:
    """Claim the exposed transfer of gathers that could have started earlier, because nothing was sent before them.

    A gather can move forward by at most the time in which its stream was idle before it. The first one of a step
    cannot: its parameters come from the optimizer.
    """
    calls = _gathers(facts)
    if calls is None:
        return None
    idle = _idle_before(facts, calls)
    first = np.ones(len(calls), bool)
    first[1:] = (calls["step"][1:] != calls["step"][:-1]) | (calls["rank"][1:] != calls["rank"][:-1])
    idle[first] = 0
    return _claim(facts, limits, calls, np.minimum(_exposed(calls), idle), {"gathers_per_step": len(calls)})


def _gathered_again(facts: Facts, limits: Limits) -> Claim | None:
    """Claim the exposed transfer of the gathers of a layer that had been gathered before in the same step."""
    calls = _gathers(facts)
    if calls is None:
        return None
    keys = np.stack([calls["rank"], calls["step"], calls["scope"]], axis=1)
    order = np.lexsort([calls["start_ns"], calls["scope"], calls["step"], calls["rank"]])
    again = np.zeros(len(calls), bool)
    again[order[1:]] = (keys[order[1:]] == keys[order[:-1]]).all(axis=1)
    return _claim(facts, limits, calls, np.where(again, _exposed(calls), 0), {"gathers_per_step": int(again.sum())})


def _gathers(facts: Facts) -> Table | None:
    """Return the all-gathers of layers in the counted steps, by rank and start; None if there are none on a GPU."""
    if facts.calls is None or not facts.gpu or not facts.sharded():
        return None
    calls = facts.calls
    named = calls.where("scope", lambda word: "(" in word)  # without a layer: the outermost module, gathered first
    chosen = named & calls.where("kind", lambda word: word == "allgather") & np.isin(calls["step"], facts.steps["step"])
    chosen &= calls["transfer_clockfree_ns"] != UNKNOWN
    return calls.take(np.flatnonzero(chosen)).sort("rank", "start_ns") if chosen.any() else None


def _exposed(calls: Table) -> Column:
    """Return how long each transfer ran without a kernel (ns), without the wait for other ranks."""
    return np.minimum(np.maximum(0, calls["exposed_ns"]), np.maximum(0, calls["transfer_clockfree_ns"]))


def _idle_before(facts: Facts, calls: Table) -> Column:
    """Return how long the stream of each gather had nothing to send before it (ns), back to the call before it."""
    every = facts.calls
    assert every is not None
    idle = np.zeros(len(calls), np.int64)
    for rank, own in group_by.positions(calls["rank"]).items():
        others = every.take(every["rank"] == rank)
        ends = np.sort(others["end_ns"])
        at = np.searchsorted(ends, calls["start_ns"][own], "right") - 1
        gap = calls["start_ns"][own] - ends[np.maximum(at, 0)]
        idle[own] = np.where(at >= 0, np.maximum(gap, 0), 0)
    return idle


def _claim(facts: Facts, limits: Limits, calls: Table, gains: Column, evidence: dict[str, Any]) -> Claim | None:
    rank_steps = max(len(facts.steps), 1)
    gain = min(float(gains.sum()) / rank_steps, _known_exposed(facts))
    if gain < limits.reported * facts.step_ns:
        return None
    evidence["gathers_per_step"] = round(evidence["gathers_per_step"] / rank_steps, 3)
    layers = _costliest(calls, gains)
    return Claim(gain_ns=gain, evidence=evidence | {"exposed_ms": estimate_ms(gain), "layers": layers})


def _known_exposed(facts: Facts) -> float:
    known = facts.steps["exposed_transfer_ns"]
    return float(known[known != UNKNOWN].mean()) if (known != UNKNOWN).any() else 0.0


def _costliest(calls: Table, gains: Column, most: int = 3) -> Sequence[str]:
    """Return the layers with the largest sums."""
    sums = np.bincount(calls["scope"], gains, len(calls.words["scope"]))
    chosen = [code for code in np.argsort(-sums)[:most].tolist() if sums[code] > 0]
    return [calls.words["scope"][code].partition("(")[2].rstrip(")") for code in chosen]


RULES = (
    Rule(
        id="late_prefetch",
        says="layers wait for parameters whose all-gather could have started earlier",
        seen_in="exposed_transfer",
        based_on="exposed transfer of FSDP's all-gathers, at most as long as their stream was idle before each",
        counts_steps=True,
        check=_late_prefetch,
        advice=Advice(
            "parameters are gathered just before their layer needs them, although nothing was sent before: prefetch",
            ("parallel.prefetch=1",),
        ),
        part="communication",
        mended=Mended(works=("transfer",)),
        remains="compute",
    ),
    Rule(
        id="gathered_again",
        says="parameters are gathered a second time for the backward pass, and nothing hides it",
        seen_in="exposed_transfer",
        based_on="exposed transfer of the all-gathers of a layer after its first one in a step",
        counts_steps=True,
        check=_gathered_again,
        advice=Advice(
            "the parameters of a layer are gathered again for the backward pass: keep them if the memory allows it",
            ("parallel.reshard_after_forward=false",),
        ),
        part="communication",
        mended=Mended(works=("transfer",)),
        remains="compute",
    ),
)
