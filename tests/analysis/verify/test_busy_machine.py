"""Ratios with intervals, gains within the plain step on a CPU, and late ranks that a few traced steps cannot show."""

from typing import Any

import msgspec
import numpy as np
import pytest

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.table import Table
from rankscope.analysis.explain import findings
from rankscope.analysis.explain.gain_limit import Room
from rankscope.analysis.job.cpu_use import CpuUse
from rankscope.analysis.job.slow_steps import SlowSteps
from rankscope.analysis.measure import verdict
from rankscope.analysis.measure.stragglers import StepVerdict, Verdict
from rankscope.analysis.verify.overhead import ratio_interval

from ..explain.made_facts import MS, all_reduces, config, facts, found, restarts, steps

CPU = CpuUse(got={0: 0.6, 1: 0.7}, work_ms={0: 60.0, 1: 70.0}, idle_ms={0: 4.0, 1: 25.0})


def test_a_ratio_has_an_interval() -> None:
    """The median of 1..20 lies between the 6th and the 15th value; of four steps only the extremes are known."""
    assert ratio_interval(np.arange(1.0, 21.0), np.full(20, 2.0)) == (3.0, 7.5)
    assert ratio_interval(np.array([22.0, 2952.0, 90.0, 80.0]), np.array([20.0, 40.0])) == (0.55, 147.6)
    assert ratio_interval(np.zeros(0), np.ones(3)) is None


@pytest.mark.parametrize(("parts", "rule", "at_most"), [
    ({"data_stall": [60, 60]}, "data_stall", 20.0),  # 90 ms plain, of which a rank works for 70
    ({"host_gap": [60, 60]}, "host_gap", 4.0),  # every rank sleeps for 4 ms: the rest is a wait for another rank
])  # fmt: skip
def test_no_gain_on_a_cpu_exceeds_the_plain_step_without_the_threads_work(
    parts: dict[str, Any], rule: str, at_most: float
) -> None:
    table = steps(**parts)
    case = findings.find(facts(table, gpu=False, cpu=CPU), Limits())
    room = Room.of(table, 90.0, gpu=False, cpu=CPU)
    gains = {item.id: item.recoverable_ms for item in findings.correct(case, 90.0, 10.0, False, Limits(), room)}
    assert gains[rule] == at_most


def test_a_wait_for_batches_is_no_longer_than_in_the_plain_pass() -> None:
    table = steps(data_stall=[60, 60])
    room = Room.of(table, 90.0, data_wait_ms=7.5)
    (one,) = findings.correct(findings.find(facts(table), Limits()), 90.0, 10.0, False, Limits(), room)
    assert one.recoverable_ms == 7.5


def test_communication_on_a_cpu_promises_nothing() -> None:
    case = found(facts(steps(exposed_transfer=[40, 40]), calls=all_reduces([10**8]), gpu=False))
    assert {(item.severity, item.recoverable_ms) for item in case.values()} == {("low", None)}


def test_gaps_on_a_cpu_promise_nothing_without_unprofiled_steps() -> None:
    gap = found(facts(steps(host_gap=[60, 60]), gpu=False))["host_gap"]
    assert (gap.severity, gap.recoverable_ms) == ("low", None)


@pytest.mark.parametrize(("epochs", "workers", "variant"), [
    ({(4, 0), (4, 1)}, 2, "start again in every epoch"),
    ({(4, 0)}, 0, "no epoch began there"),
    (set(), 2, "no epoch began there"),
    (None, 2, "if epochs begin there"),
])  # fmt: skip
def test_a_slow_batch_is_a_restart_only_where_an_epoch_begins(
    epochs: set[tuple[int, int]] | None, workers: int, variant: str
) -> None:
    case = facts(
        steps(data_stall=[6, 6]), loader=restarts(6.0), epochs=epochs, config=config(num_workers=workers)
    )  # fmt: skip
    said = found(case)["first_batch"]
    assert variant in said.advice
    assert (said.recoverable_ms is None) == ("no epoch" in variant)


@pytest.mark.parametrize(("workers", "spare", "advised"), [(2, 0, []), (2, 2, []), (2, 3, ["num_workers=4"])])
def test_no_more_workers_than_cores(workers: int, spare: int, advised: list[str]) -> None:
    """The thread waits for its workers, and whether they compute is not known: they do, as far as advice goes."""
    case = facts(steps(data_stall=[30, 30]), loader_cpu=(0.1, spare), config=config(num_workers=workers))
    assert found(case)["data_stall"].overrides == advised


def slow(**more: Any) -> SlowSteps:
    usual = SlowSteps(
        steps=[5], ranks=[1], waiting=[0], place="forward", usual_ms=10, slow_ms=90, lost_ms=4, mean_ms=14, share=0.3,
        period=None,
    )  # fmt: skip
    return msgspec.structs.replace(usual, **more)


@pytest.mark.parametrize(("what", "severity"), [
    (slow(), "high"),
    (slow(core_wait_share=0.49), "high"),
    (slow(core_wait_share=0.5), "low"),
    (slow(place="backward", waiting=[]), "low"),  # nobody is at fault, and the ranks share cores
])  # fmt: skip
def test_slow_steps_of_a_busy_machine_are_low(what: SlowSteps, severity: str) -> None:
    assert found(facts(gpu=False, slow=what, cpu=CPU))["slow_steps"].severity == severity


@pytest.mark.parametrize(("got", "what", "severity"), [
    (0.49, slow(), "low"),
    (0.51, slow(), "high"),
    (0.49, slow(period=20), "high"),  # regular, as a checkpoint is
    (0.49, slow(where="train.py:9 evaluate"), "high"),
])  # fmt: skip
def test_single_slow_steps_of_a_starved_rank_are_low(got: float, what: SlowSteps, severity: str) -> None:
    cpu = msgspec.structs.replace(CPU, got=dict.fromkeys(CPU.got, got))
    assert found(facts(gpu=False, slow=what, cpu=cpu))["slow_steps"].severity == severity


def on_cpu(lateness: list[int], step_ms: list[int], judged: int | None = None) -> Verdict:
    """Rank 1 of two is late by so many ms in the first steps."""
    late = [
        StepVerdict(step=step, rank=1, lateness_ns=amount * MS, excess_ns={}) for step, amount in enumerate(lateness)
    ]
    count = len(step_ms)
    table = Table({"step": np.repeat(np.arange(count), 2), "step_ns": np.repeat(step_ms, 2) * MS})
    said = Verdict(verdict="persistent", rank=1, ranks=[1], steps_judged=judged or count, per_step=late)
    return verdict._beyond_chance(said, table, 2, Limits())


def test_ranks_on_a_cpu_are_late_only_beyond_chance() -> None:
    assert on_cpu([4, 4], [20, 22, 21]).verdict == "undetermined"  # 2 of 3 is what a coin gives
    assert on_cpu([4, 4, 4], [20, 26, 21]).verdict == "undetermined"  # in each, but steps differ by more
    assert on_cpu([50, 51, 52], [70, 72, 71]).verdict == "persistent"
    assert on_cpu([50], [70]).verdict == "undetermined"
    assert on_cpu([4] * 12, [20, 21, 22] * 4).verdict == "persistent"
    assert on_cpu([4] * 12, [10, 20, 30] * 4).verdict == "none"  # steps vary by more than that


@pytest.mark.parametrize("count", [3, 7, 8, 9, 10, 30])
def test_a_rank_that_is_late_in_each_step_by_much_is_never_called_punctual(count: int) -> None:
    """Two ranks: even 9 of 9 steps happen by chance too often for the test, so fewer steps need another rule."""
    steps = [70 + step % 2 for step in range(count)]
    assert on_cpu([50] * count, steps).verdict == "persistent"
    assert on_cpu([2] * count, steps).verdict == ("undetermined" if count < 10 else "persistent")
