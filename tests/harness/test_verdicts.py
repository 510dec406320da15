"""The Monitor's judgements against their definitions, by enumeration, by simulation, and on steps made by hand."""

import io
import itertools
import json
import math
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from rankscope.harness.watch.event import Event
from rankscope.harness.watch.exact_tests import Values, _u_counts, fisher, u_statistic, u_threshold
from rankscope.harness.watch.late_rank import JUDGED, REFERENCE, LateRank
from rankscope.harness.watch.log_limit import MOST, STEPS, LogLimit
from rankscope.harness.watch.parts import CAUSES, PARTS, excesses, late_ranks, of_row, own_parts, shares
from rankscope.harness.watch.speed import Speed
from rankscope.harness.watch.swings import LONGEST, REMEMBERED, Swings

DATA = Path(__file__).parent.parent / "data"
MS = 1e6
EVERY = 5


def test_u_is_counted_as_all_orders_of_the_steps_give_it() -> None:
    found: Counter[float] = Counter()
    for chosen in itertools.combinations(range(7), 3):
        rest = [place for place in range(7) if place not in chosen]
        found[u_statistic(np.array(chosen, float), np.array(rest, float))] += 1
    assert [found[u] for u in range(13)] == _u_counts(3, 4)
    assert u_statistic(np.ones(2), np.ones(3)) == 3  # equal pairs count half


def test_the_threshold_is_the_least_that_keeps_the_rate() -> None:
    counts = _u_counts(5, 8)
    for alpha in (0.5, 0.05, 0.001):
        u = int(u_threshold(5, 8, alpha))
        assert sum(counts[u:]) <= alpha * math.comb(13, 5) < sum(counts[u - 1 :])
    assert u_threshold(1, 1, 1e-9) == math.inf


def test_fisher_against_all_orders() -> None:
    places = list(itertools.combinations(range(9), 4))  # of 4 hits; the last 3 steps are the recent ones
    for hits in range(4):
        expected = sum(sum(place >= 6 for place in chosen) >= hits for chosen in places) / len(places)
        assert fisher(hits, 3, 4 - hits, 6) == pytest.approx(expected)


def steps(count: int, ranks: int, seed: int, noise: float = 0.01) -> Values:
    """Return healthy steps of 10 ms: 1 data, 4 forward, 4 backward (3 until its gradients), 1 optimizer, with noise."""
    parts = np.tile(np.array([0.0, 1, 0, 4, 4, 1, 3, 0, 0, 0, 0]) * MS, (count, ranks, 1))
    own = np.random.default_rng(seed).lognormal(0, noise, parts.shape)
    parts *= own
    parts[..., 0] = parts[..., 1:6].sum(axis=-1).max(axis=1, keepdims=True)
    return parts


def slowed(parts: Values, rank: int, column: int, ms: float) -> Values:
    """Slow one rank: the others' backward pass, which waits for it, and everybody's step become longer.

    Column 6 slows its own backward pass, which is then as long as that of the others.
    """
    parts = parts.copy()
    parts[..., 0] += ms * MS
    if column:
        parts[:, rank, column] += ms * MS
    for other in range(parts.shape[1]):
        parts[:, other, 4] += ms * MS if other != rank or column == 6 else 0
    return parts


def feed(judge: LateRank, parts: Values) -> list[tuple[int, str]]:
    return [
        (event.step, f"{event.event} {event.rank} {event.cause}")
        for first in range(0, len(parts) - EVERY + 1, EVERY)
        for event in judge.add(first, parts[first : first + EVERY])
    ]


@pytest.mark.parametrize(("column", "cause"), [(1, "data"), (2, "copy"), (3, "compute"), (6, "compute"), (0, "host")])
def test_a_rank_that_becomes_late_is_named_within_ten_steps_and_let_go(column: int, cause: str) -> None:
    healthy, late = steps(203, 4, seed=1), slowed(steps(200, 4, seed=2), 2, column, 3.0)
    found = feed(LateRank(4, 1e-6), np.concatenate([healthy, late, steps(100, 4, seed=3)]))
    (named, said), (gone, recovered) = found
    assert said == f"late_rank 2 {cause}" and 203 <= named <= 213
    assert recovered == "recovered 2 None" and 403 + JUDGED <= gone + 1 <= 403 + JUDGED + EVERY


def test_a_rank_that_is_late_from_the_start_is_named_after_the_reference() -> None:
    found = feed(LateRank(2, 1e-6), slowed(steps(200, 2, seed=1), 0, 3, 2.0))
    assert found == [(JUDGED + REFERENCE - 1, "late_rank 0 compute")]


def test_waiting_in_the_backward_pass_is_not_being_late() -> None:
    own = own_parts(slowed(steps(1, 2, seed=1, noise=0), 0, 3, 3.0))
    assert own[0].sum(axis=1).tolist() == pytest.approx([12 * MS, 9 * MS])


@pytest.mark.parametrize(
    ("leads", "launches", "expected"),
    [
        pytest.param((0, 0), (11, 11), {"compute": 3, "host": 0}, id="unknown, as on a CPU"),
        pytest.param((1, 1), (11, 11), {"compute": 3, "host": 0}, id="queued: the device computes longer"),
        pytest.param((-1, 1), (11, 11), {"compute": 0, "host": 0}, id="one device always follows its host"),
        pytest.param((-1, 1), (13, 11), {"compute": 0, "host": 2}, id="its host launches longer than the other"),
        pytest.param((-1, 1), (15, 11), {"compute": 0, "host": 3}, id="no more than the device shows"),
        pytest.param((-1, -1), (13, 11), {"compute": 1, "host": 2}, id="no host leads: the rest is the device's"),
        pytest.param((-1, 1), (8, 8), {"compute": 3, "host": 0}, id="it only reads the loss: its host is faster"),
    ],
)
def test_a_device_that_follows_its_host_is_not_slow(
    leads: tuple[int, int], launches: tuple[int, int], expected: dict[str, float]
) -> None:
    parts = slowed(steps(1, 2, seed=1, noise=0), 0, 3, 3.0)
    parts[0, :, PARTS.index("launch")], parts[0, :, PARTS.index("lead")] = np.array(launches) * MS, leads
    found = dict(zip(CAUSES, excesses(parts)[0, 0] / MS, strict=True))
    assert found == pytest.approx({"data": 0, "copy": 0, **expected})


@pytest.mark.parametrize(
    ("hosts", "compute", "host"),
    [
        pytest.param((7, 4), 0, 3, id="its host launches the forward pass longer"),
        pytest.param((7, 6), 2, 1, id="no more than it takes longer than the other"),
        pytest.param((7, 7), 3, 0, id="as long as the other: the device computes longer"),
        pytest.param((5, 4), 3, 0, id="its device does not wait for it"),
    ],
)
def test_a_device_may_follow_its_host_only_in_the_forward_pass(
    hosts: tuple[int, int], compute: float, host: float
) -> None:
    """Both hosts lead at the end of the backward pass. The forward pass takes 7 and 4 ms on the devices."""
    parts = slowed(steps(1, 2, seed=1, noise=0), 0, 3, 3.0)
    parts[0, :, PARTS.index("launch forward")], parts[0, :, PARTS.index("lead")] = np.array(hosts) * MS, 1
    assert excesses(parts)[0, 0] / MS == pytest.approx([0, 0, compute, host])


@pytest.mark.parametrize(
    ("column", "waits", "outside", "expected"),
    [
        pytest.param("data", (50, 50), (0, 0), [0, 0, 0, 0], id="both loaders are slow: one host runs ahead"),
        pytest.param("data", (50, 10), (0, 0), [35, 0, 0, 0], id="its loader is slower"),
        pytest.param("data", (50, 50), (15, 0), [0, 0, 0, 15], id="both loaders are slow, and its host does more"),
        pytest.param("host", (0, 0), (50, 50), [0, 0, 0, 0], id="both hosts do something else for as long"),
        pytest.param("host", (0, 0), (50, 5), [0, 0, 0, 35], id="its host does something else"),
    ],
)
def test_a_device_stands_still_for_its_own_host_only_if_that_is_slower(
    column: str, waits: tuple[int, int], outside: tuple[int, int], expected: list[float]
) -> None:
    """The device of rank 0 stands still for 35 ms, that of rank 1 waits as long in its backward pass."""
    parts = np.zeros((1, 2, len(PARTS)))
    at = PARTS.index
    parts[0, :, at("step")], parts[0, :, at("forward")], parts[0, :, at("backward compute")] = 64 * MS, 9 * MS, 19 * MS
    parts[0, :, at("backward")] = np.array([20, 55]) * MS
    parts[0, :, at("data")], parts[0, :, at("launch")], parts[0, :, at("lead")] = np.array(waits) * MS, 10 * MS, 1
    parts[0, :, at("host")] = (np.array(waits) + np.array(outside) + 10) * MS
    assert excesses(parts)[0, 0] / MS == pytest.approx(expected)


@pytest.mark.parametrize(
    ("case", "rank", "cause"),
    [
        ("in_turn/./none", None, None),
        ("in_turn/./compute_backward", 1, "compute"),
        ("in_turn/./longer_batches", 1, "compute"),
        ("in_turn/./copy", 0, "copy"),
        ("host_bound/host_bound-none-0", None, None),
        ("host_bound/host_bound-compute_forward-0", 1, "compute"),
        ("host_bound/host_bound-host-1", 1, "host"),
        ("host_bound/host_bound-loader-1", 0, "data"),
    ],
)
def test_steps_of_real_jobs_have_the_planted_rank_and_cause(case: str, rank: int | None, cause: str | None) -> None:
    """On two H200s, recorded by benchmarks/unprofiled.py. Without a fault, no device is slow in either job."""
    ranks, found = late_ranks(plain_steps(case), 0.05)
    causes = [shares(excess)[0] for late, excess in zip(ranks, found, strict=True) if late >= 0]
    if rank is None:
        assert "compute" not in causes
    else:
        assert np.mean(ranks == rank) > 0.9 and np.mean(np.array(causes) == cause) > 0.9


def plain_steps(case: str) -> Values:
    """Return the parts of the measured plain steps of a recording in tests/data/unprofiled."""
    name, _, folder = case.partition("/")
    with tarfile.open(DATA / "unprofiled" / f"two_h200_{name}.tar.xz") as archive:
        files = [archive.extractfile(f"{folder}/passes/plain/ranks/{rank}/steps.json") for rank in (0, 1)]
        columns = [json.loads(file.read()) for file in files if file is not None]
    rows = [[dict(zip(each, row, strict=True)) for row in zip(*each.values(), strict=True)] for each in columns]
    steps = [[of_row(row) for row in each if row["phase"] == "measured"] for each in rows]
    return np.array(steps).swapaxes(0, 1)


def test_nobody_is_late_if_all_loaders_are_slow() -> None:
    """50 ms in the loader of each of two H200s, which need 30 ms. One host runs ahead, so one device waits longer."""
    with tarfile.open(DATA / "two_gpus" / "paced_by_loaders.tar.xz") as archive:
        for window, count in (("plain", 50), ("timed", 30)):
            rows = []
            for rank in (0, 1):
                file = archive.extractfile(f"slow_loader/passes/{window}/ranks/{rank}/steps.parquet")
                assert file is not None
                rows.append(pq.read_table(io.BytesIO(file.read())).to_pylist())
            parts = np.array([[of_row(row) for row in each if row["phase"] == "measured"] for each in rows])
            ranks, _ = late_ranks(parts.swapaxes(0, 1), 0.05)
            assert len(ranks) == count and np.sum(ranks >= 0) <= 1


def watched(name: str) -> tuple[Values, NDArray[np.bool_]]:
    """Return the parts of a job that the Monitor watched on two H200s, and which steps were traced.

    Its hosts set the pace: 90 % of the steps take 12.4 to 22.8 ms, of which the GPUs need 12. Unknown in two of the
    three: the own part of the backward pass, and all by the host's clock.
    """
    with np.load(DATA / "watched" / f"{name}.npz") as file:
        parts = file["parts"] * 1e4
        unknown = np.zeros((*parts.shape[:2], len(PARTS) - parts.shape[2]))
        return np.concatenate([parts, unknown], axis=2), file["traced"]


def judged(name: str) -> list[Event]:
    parts, traced = watched(name)
    late, speed, found = LateRank(2, 2.5e-6), Speed(2.5e-6), list[Event]()
    for first in range(20, len(parts) - EVERY + 1, EVERY):
        if traced[max(0, first - 15) : first + EVERY].any():
            late.interrupt()
            speed.interrupt()
        else:
            block = parts[first : first + EVERY]
            found += late.add(first, block) + speed.add(first, np.median(block[:, :, 0], axis=1))
    return found


def test_hosts_whose_pace_wanders_are_hardly_news() -> None:
    """Nothing was planted in 8,193 steps. The tests alone found 156 changes. One in 1,000 steps is a tolerable rate."""
    assert len(judged("none")) <= 8


def test_a_fault_is_found_although_the_pace_wanders() -> None:
    """10 ms on rank 1 from step 5985 on."""
    found = [event for event in judged("compute") if event.step >= 5985]
    named = [event for event in found if event.event == "late_rank"]
    assert named and {(event.rank, event.cause) for event in named} == {(1, "compute")}
    assert abs(named[0].since - 5985) <= JUDGED and named[0].step < 5985 + LONGEST
    (changed,) = [event for event in found if event.event == "speed_changed"]
    assert changed.after_ms is not None and changed.before_ms is not None and changed.after_ms > changed.before_ms


def test_a_fault_is_found_although_a_window_opens_meanwhile() -> None:
    """10 ms on rank 1 from step 1300 on. A window opens at step 1454, before the change of speed is news."""
    found = [event for event in judged("compute_later") if event.step >= 1300]
    (named,) = [event for event in found if event.event == "late_rank"]
    assert (named.rank, named.cause) == (1, "compute") and abs(named.since - 1300) <= JUDGED
    (changed,) = [event for event in found if event.event == "speed_changed"]
    assert abs(changed.since - 1300) <= JUDGED and changed.step > 1454


@pytest.mark.parametrize("seed", range(3))
def test_what_a_profiler_costs_is_not_booked_on_a_change_before_it(seed: int) -> None:
    """A second swing (+10 %) is no news yet when a window opens, and ends there. The profiler costs 6 % for good."""
    pace = np.repeat([10, 12, 10, 11, 10.6], [300, 90, 410, 100, 700]) * MS
    pace *= np.random.default_rng(seed).lognormal(0, 0.01, len(pace))
    speed, found = Speed(2.5e-6), list[Event]()
    for first in range(0, len(pace), EVERY):
        if 895 <= first < 905:
            speed.interrupt()
        else:
            found += speed.add(first, pace[first : first + EVERY])
    assert [event.since // 100 for event in found] == [3, 3]  # the first swing begins and ends


def test_what_comes_and_goes_is_news_only_if_it_lasts() -> None:
    swings = Swings()
    assert swings.is_news("host", 0, 1)
    swings.ended("host", 40, 20)
    swings.ended("host", 90, 5)
    assert not swings.is_news("host", 200, 3 * 20 - 1) and swings.is_news("host", 200, 3 * 20)
    assert swings.is_news("compute", 200, 1), "another kind has its own swings"
    assert swings.is_news("host", 41 + REMEMBERED, 3 * 5), "only the later one is remembered"
    swings.ended("host", 300, 10 * LONGEST)
    assert swings.is_news("host", 400, LONGEST)


@pytest.mark.parametrize("share", [0.6, 0.7, 0.8])
def test_a_rank_that_is_late_in_most_steps_is_named(share: float) -> None:
    """Its good steps come by chance, and must not look like the end of a swing."""
    for seed in range(4):
        is_late = np.random.default_rng(seed).random(2000) < share
        parts = np.where(is_late[:, None, None], slowed(steps(2000, 2, seed), 0, 3, 2.0), steps(2000, 2, seed))
        (step, said), *_ = feed(LateRank(2, 1e-6), parts)
        assert said == "late_rank 0 compute" and step < 5 * REFERENCE


def test_a_second_fault_needs_to_last_three_times_as_long() -> None:
    first, second = slowed(steps(20, 8, 1), 3, 3, 2.0), slowed(steps(400, 8, 2), 5, 3, 2.0)
    found = feed(LateRank(8, 1e-6), np.concatenate([steps(500, 8, 3), first, steps(500, 8, 4), second]))
    named = [(step, said) for step, said in found if "late" in said]
    assert [said for _, said in named] == ["late_rank 3 compute", "late_rank 5 compute"]
    assert 1020 + 3 * 20 - EVERY <= named[1][0] <= 1020 + 3 * 20 + 2 * EVERY


def test_a_fault_is_dated_by_its_first_step_also_after_a_window() -> None:
    parts = np.concatenate([slowed(steps(100, 2, 1), 0, 3, 3.0), slowed(steps(900, 2, 2), 1, 3, 3.0)])
    judge = LateRank(2, 1e-6)
    feed(judge, parts[:100])
    judge.interrupt()
    events = [event for at in range(100, 1000, EVERY) for event in judge.add(at, parts[at : at + EVERY])]
    assert [(event.rank, event.since) for event in events] == [(1, 100)]


def test_steps_without_any_time_are_no_event() -> None:
    nothing = np.zeros((300, 2, len(PARTS)))
    assert feed(LateRank(2, 1e-6, late=0.0), nothing) == []
    assert [
        e for at in range(0, 300, EVERY) for e in Speed(1e-6, least=0.0).add(at, nothing[at : at + EVERY, 0, 0])
    ] == []


def test_a_rank_of_another_cause_is_named_at_once_although_hosts_swing() -> None:
    turns = [slowed(steps(60, 2, seed), seed % 2, 0, 3.0) for seed in range(12)]
    found = feed(LateRank(2, 1e-6), np.concatenate([*turns, steps(200, 2, 50), slowed(steps(40, 2, 51), 1, 3, 4.0)]))
    assert found[-1][1] == "late_rank 1 compute" and found[-1][0] < 12 * 60 + 200 + 10
    assert len([said for _, said in found if "late" in said]) < 5, "twelve swings, of which the first are news"


@pytest.mark.parametrize("lasts", [30, 300])
def test_hosts_that_wander_are_never_late(lasts: int) -> None:
    """Each forward pass takes longer by an AR(1) process, up to 30 % of a step, that forgets after `lasts` steps."""
    random, keeps = np.random.default_rng(lasts), math.exp(-1 / lasts)
    wander = np.zeros((10_000, 2))
    for before, now in itertools.pairwise(range(10_000)):
        wander[now] = keeps * wander[before] + random.normal(0, math.sqrt(1 - keeps**2), 2)
    parts = steps(10_000, 2, lasts)
    parts[..., 3] += np.maximum(wander, 0) * MS
    parts[..., 0] = parts[..., 1:6].sum(axis=-1).max(axis=1, keepdims=True)
    assert feed(LateRank(2, 2.5e-6), parts) == []


def test_no_more_false_late_ranks_than_stated() -> None:
    """Steps so noisy that a rank is late in one of four: exchangeable, so no more alarms than `alpha` a judgement."""
    alpha, judgements, alarms = 0.02, 0, 0
    for seed in range(30):
        judge = LateRank(2, alpha)
        parts = steps(400, 2, seed=seed, noise=0.12)
        for first in range(0, len(parts), EVERY):
            alarms += sum(event.event == "late_rank" for event in judge.add(first, parts[first : first + EVERY]))
            judgements += first >= JUDGED
    assert 0 < alarms <= alpha * judgements


@pytest.mark.parametrize("noise", [0.3, 0.5, 1.0])
def test_two_equal_ranks_with_noisy_steps_are_never_named(noise: float) -> None:
    """Either rank is late in about half of the steps, which is no evidence: no event in 12,000 judgements."""
    found = []
    for seed in range(2):
        judge = LateRank(2, 1e-6)
        parts = steps(30_000, 2, seed, noise)
        for first in range(0, len(parts), EVERY):
            found += judge.add(first, parts[first : first + EVERY])
    assert [event for event in found if event.event == "late_rank"] == []


def test_an_unsteady_job_does_not_flood_the_log() -> None:
    limit = LogLimit()
    told = [limit.lines(step, f"event {step}") for step in range(MOST + 5)]
    assert [len(lines) for lines in told] == [1] * (MOST + 1) + [0] * 4 and "events.jsonl" in told[MOST][0]
    rare = [limit.lines(STEPS + 200 * k, "rare") for k in range(MOST)]
    assert rare[-1] == ["rare"], "five in a thousand steps are told again"
