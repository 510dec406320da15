"""Findings about late ranks: which ranks they name, and when lower clocks explain them."""

import msgspec
import pytest

from rankscope.analysis.explain import findings
from rankscope.analysis.measure.segments import CAUSES
from rankscope.analysis.measure.stragglers import StepVerdict, Verdict

from .made_facts import MS, facts, found, late, steps


def test_reasons_to_throttle_are_named() -> None:
    clocks = {0: {"clock_mhz": 1980.0, "reasons": 1}, 1: {"clock_mhz": 1500.0, "reasons": 0x4 | 0x40 | 0x1}}
    one = found(facts(verdict=late(3), clocks=clocks))["throttled"]
    assert one.evidence["reasons"] == ["software power cap", "hardware thermal slowdown"] and one.ranks == [1]


def test_lower_clocks_must_explain_the_lateness() -> None:
    """At 1500 of 2000 MHz, 10 ms of compute lose at most 2.5 ms: a rank that is late by 9 ms has more to compute."""
    clocks = {0: {"clock_mhz": 2000.0, "reasons": 1}, 1: {"clock_mhz": 1500.0, "reasons": 4}}
    busy = steps(copy=[90, 90])
    verdicts = [msgspec.structs.replace(late(ms), lateness_ns=ms * MS) for ms in (9, 3)]
    much, little = (found(facts(busy, verdict=verdict, clocks=clocks)) for verdict in verdicts)
    assert "throttled" not in much
    assert little["throttled"].recoverable_ms == pytest.approx(2.5)


def test_lower_clocks_promise_only_the_time_of_their_own_rank() -> None:
    """Rank 1 costs 15 ms in one of four steps, rank 0 costs 40 ms in another: lower clocks on rank 1 cost 15 / 4."""
    per_step = [
        StepVerdict(
            step=step, rank=rank, lateness_ns=cost * MS, excess_ns=dict.fromkeys(CAUSES, 0) | {"compute": cost * MS}
        )
        for step, rank, cost in ((4, 1, 15), (5, 0, 40))
    ]
    verdict = Verdict(
        verdict="intermittent",
        rank=1,
        ranks=[1],
        cause="compute",
        lateness_ns=15 * MS,
        steps_judged=4,
        per_step=per_step,
    )
    clocks = {0: {"clock_mhz": 1980.0, "reasons": 1}, 1: {"clock_mhz": 1500.0, "reasons": 4}}
    case = found(facts(verdict=verdict, clocks=clocks))
    assert case["throttled"].recoverable_ms == 3.75
    shared = {item.id: item.evidence.get("same_time_as") for item in findings.with_shared_time(list(case.values()))}
    assert shared == {"straggler_compute": None, "throttled": "straggler_compute"}


def test_ranks_whose_lateness_costs_next_to_nothing_are_not_named() -> None:
    def rotating(small_ms: float) -> list[int]:
        costs = {0: small_ms, 1: 40.0}
        one = [
            StepVerdict(step=4 + rank, rank=rank, lateness_ns=int(cost * MS), excess_ns={"compute": int(cost * MS)})
            for rank, cost in costs.items()
        ]
        verdict = Verdict(verdict="rotating", cause="compute", lateness_ns=MS, steps_judged=2, per_step=one)
        return found(facts(verdict=verdict))["straggler_compute"].ranks

    assert rotating(10.0) == [0, 1] and rotating(9.9) == [1]


def test_a_rank_that_is_late_often_by_little_does_not_hide_one_that_is_late_once_by_much() -> None:
    """As recorded on two cores: rank 0 late by 3 and 4 ms, rank 1 by 32 ms in the step between."""
    per_step = [
        StepVerdict(
            step=step, rank=rank, lateness_ns=cost * MS, excess_ns=dict.fromkeys(CAUSES, 0) | {cause: cost * MS}
        )
        for step, rank, cause, cost in ((12, 0, "host", 3), (13, 1, "compute", 32), (14, 0, "host", 4))
    ]
    often = Verdict(
        verdict="persistent", rank=0, ranks=[0], cause="host", lateness_ns=3 * MS, steps_judged=3, per_step=per_step
    )
    one = found(facts(verdict=often))["straggler_compute"]
    assert (one.ranks, one.recoverable_ms) == ([1], round(32 / 3, 4))
