"""What the plain pass makes of findings: what profiling added, what is left to gain, what the loader does."""

import numpy as np
import pytest

from rankscope.analysis.explain import findings
from rankscope.analysis.explain.gain_limit import Room
from rankscope.analysis.measure.loader import on_cpu
from rankscope.analysis.read.pass_steps import PassSteps

from ..explain.made_facts import LIMITS, MS, activity, all_reduces, config, facts, found, late, steps, syncs


def test_what_profiling_added_is_not_promised() -> None:
    case = found(
        facts(steps(host_gap=[20, 20]), activity=activity(kernels=[1, 1], kernel_ns=[1, 1], launch_p50_ns=[2, 2]))
    )
    before = [case["host_bound_launch"]]
    (after,) = findings.correct(before, 88.0, 12.0, False, LIMITS)
    assert (after.recoverable_ms, after.severity) == (8.0, "medium")
    assert findings.correct(before, 82.0, 18.0, False, LIMITS) == []
    (unknown,) = findings.correct(before, None, None, False, LIMITS)
    assert unknown.severity == "medium" and unknown.evidence["under_the_profiler_only"]
    assert found(facts(overhead=1.151))["profiler_distorts"].severity == "low"
    assert found(facts(overhead=1.15)) == found(facts()) == {}


def test_no_fix_brings_more_than_the_plain_step_has_beside_computing_and_transfers() -> None:
    """Traced, a step of 100 ms has 50 of stall. The plain step is 60: with 40 and 45 computed and 5 transferred, 10."""
    table = steps(data_stall=[50, 50], exposed_transfer=[5, 5], exposed_wait=[5, 0])
    before = [found(facts(table))["data_stall"]]
    (after,) = findings.correct(before, 60.0, 40.0, False, LIMITS, Room(step_ms=60.0, steps=table))
    assert (after.recoverable_ms, after.severity, after.evidence["traced_ms"]) == (10.0, "high", 50.0)
    room = Room(step_ms=60.0, steps=table)
    assert room.left("others' work", [1]) == 15.0, "the late rank mended, the others' 40 + 5 are left"
    assert room.left("compute", [0, 1]) == 15.0, "a transfer that is hidden leaves the computing"
    assert room.left("nothing", [0, 1]) is None


def test_on_a_cpu_a_late_rank_that_the_plain_pass_does_not_show_is_not_called_high() -> None:
    late_rank = found(facts(verdict=late(30)))["straggler_compute"]
    stall = found(facts(steps(data_stall=[30, 30])))["data_stall"]
    assert [item.severity for item in findings.unsure([late_rank, stall])] == ["medium", "high"]


def test_what_profiling_added_is_taken_off_once() -> None:
    """Traced gaps of 12 ms and 4 behind waits, 8 added by the profiler: half of each is left."""
    waits = {"activity": activity(syncs=[1, 1], sync_idle_ns=[4 * MS, 4 * MS], kernel_ns=[9, 9]), "syncs": syncs(4)}
    before = findings.find(facts(steps(host_gap=[16, 16]), **waits), LIMITS)
    after = {item.id: item.recoverable_ms for item in findings.correct(before, 92.0, 8.0, False, LIMITS)}
    assert (after["host_gap"], after["sync_in_loop"]) == (6.0, 2.0)


@pytest.mark.parametrize(("share", "spare", "overrides"), [
    (0.49, 0, ["num_workers=4"]),  # it waits for its storage: workers wait beside each other
    (0.5, 0, []),
    (0.5, 1, ["num_workers=1"]),
    (1.0, 9, ["num_workers=4"]),
])  # fmt: skip
def test_workers_are_advised_where_the_loader_waits_or_cores_are_left(
    share: float, spare: int, overrides: list[str]
) -> None:
    said = found(facts(steps(data_stall=[30, 30]), loader_cpu=(share, spare), config=config()))["data_stall"]
    assert (said.overrides, said.recoverable_ms) == (overrides, 30.0)


def test_the_loader_s_cpu_time_and_a_host_s_spare_cores() -> None:
    """Two hosts of three cores: one with one rank on a GPU, one with two that compute on two threads each."""
    times = {"data_cpu_ns": np.array([6.0, 8.0]), "data_wait_ns": np.array([10.0, 10.0])}
    gpu = {"host": "a", "affinity": [0, 1, 2], "device": "cuda:0", "threads": 3}
    cpu = {"host": "b", "affinity": [0, 1, 2], "device": "cpu", "threads": 1}
    ranks = {0: times, 1: times | {"data_cpu_ns": np.array([1.0, 1.0])}}
    assert on_cpu(PassSteps(ranks=ranks, info={0: gpu, 1: gpu | {"host": "c"}})) == (0.7, 2)
    assert on_cpu(PassSteps(ranks=ranks, info={0: cpu, 1: cpu})) == (0.7, 0)
    older = {"data_wait_ns": np.array([10.0])}
    assert on_cpu(PassSteps(ranks={0: older}, info={0: gpu})) is None, "recorded before CPU times were"
    for damaged in ({"affinity": [[0]]}, {"affinity": None}, {"threads": "x"}):
        assert on_cpu(PassSteps(ranks=ranks, info={0: gpu, 1: gpu | damaged})) is None


def test_one_time_is_not_promised_twice_without_saying_so() -> None:
    case = findings.find(facts(steps(exposed_transfer=[10, 10], comm=[11, 11]), calls=all_reduces([10**8])), LIMITS)
    shared = {item.id: item.evidence.get("same_time_as") for item in findings.with_shared_time(case)}
    assert shared == {"exposed_comm": None, "no_overlap": "exposed_comm"}
