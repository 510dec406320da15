"""Who is late without a profiler: hand-made steps, and random jobs of equal ranks, in which nobody may be named."""

import numpy as np
import pytest

from rankscope.analysis.core.chance import median_interval
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.job import slow_steps
from rankscope.analysis.job.cause import cause_of
from rankscope.analysis.job.host_pace import HostPace
from rankscope.analysis.job.late_rank import judge, over_run
from rankscope.analysis.job.window import Matrix, Window
from rankscope.conf.chance import binomial_tail, independent_share

MS = 1e6


def window(steps: int = 40, **parts: Matrix) -> Window:
    """Two ranks whose steps take 100 ms unless `parts` (ms, ranks x steps) say more; backward waits for the other."""
    usual = {"data_wait": 1.0, "h2d": 1.0, "forward": 30.0, "optimizer": 5.0}
    columns = {name: np.full((2, steps), value) + parts.get(name, 0.0) for name, value in usual.items()}
    own = sum(columns.values()) + parts.get("rest", np.zeros((2, steps)))
    columns["backward"] = 60.0 + own.max(0) - own
    columns["host"] = own + columns["backward"]
    return Window(
        ranks=[0, 1],
        steps=list(range(steps)),
        columns={f"{name}_ns": values * MS for name, values in columns.items()},
        counted=np.ones(steps, bool),
    )


@pytest.mark.parametrize(
    ("part", "cause"), [("data_wait", "data"), ("h2d", "copy"), ("forward", "compute"), ("rest", "host")]
)
def test_the_part_that_is_longer_is_the_cause(part: str, cause: str) -> None:
    longer = np.zeros((2, 40))
    longer[1] = 10.0
    found = judge(window(40, **{part: longer}), None, Limits())
    assert (found.verdict, found.rank, found.cause, found.window) == ("persistent", 1, cause, "plain")
    assert found.lateness_ns == found.gain_ns == 10 * MS and found.chance is not None and found.chance < 1e-9


def with_own_backward(found: Window, own_ms: Matrix) -> Window:
    """Add the own part of the backward pass; `window` made a pass of 60 ms for the rank that waits for nobody."""
    columns = found.columns | {"backward_compute_ns": own_ms * MS}
    longest = np.nanmax(own_ms, axis=0) - np.nanmin(own_ms, axis=0)
    for name in ("backward_ns", "host_ns"):
        columns[name] = columns[name] + longest * MS
    return Window(ranks=found.ranks, steps=found.steps, columns=columns, counted=found.counted)


def test_a_slow_backward_pass_shows_in_its_own_part() -> None:
    own = np.full((2, 40), 50.0)
    own[1] += 12.0
    found = judge(with_own_backward(window(40), own), None, Limits())
    assert (found.rank, found.cause, found.part, found.gain_ns) == (1, "compute", "backward", 12 * MS)


def test_longer_batches_cost_their_forward_and_their_backward_pass() -> None:
    own, forward = np.full((2, 40), 50.0), np.zeros((2, 40))
    own[0] += 20.0
    forward[0] = 10.0
    found = judge(with_own_backward(window(40, forward=forward), own), None, Limits())
    assert (found.rank, found.cause, found.part, found.gain_ns) == (0, "compute", "backward", 30 * MS)


def test_a_part_that_one_rank_does_not_know_counts_for_none() -> None:
    own = np.full((2, 40), 50.0)
    own[1] = np.nan
    assert judge(with_own_backward(window(40), own), None, Limits()).verdict == "none"


def test_a_rank_that_is_late_in_some_steps_costs_their_share() -> None:
    longer = np.zeros((2, 60))
    longer[0, ::5] = 50.0
    found = judge(window(60, rest=longer), None, Limits())
    assert (found.verdict, found.rank, found.steps_late, found.gain_ns) == ("intermittent", 0, 12, 10 * MS)


HOSTS = {"forward": 10.0, "backward": 15.0, "optimizer": 2.0}


def follows(**more: float) -> tuple[Window, HostPace]:
    """Two ranks in a job bound by its hosts: the device of rank 1 follows its host, rank 0 has work queued.

    `more` are ms of rank 1: in its loader (data_wait), in the host's forward pass, or outside of all ranges.
    """
    extra = {"data_wait": 0.0, "forward": 0.0, "outside": 0.0} | more
    host = np.array([HOSTS["forward"] + extra["forward"], HOSTS["backward"], HOSTS["optimizer"]])
    step = host.sum() + extra["data_wait"] + extra["outside"]
    columns = {
        "device": [step, step], "host": [step, step], "data_wait": [0.0, extra["data_wait"]], "h2d": [0.1, 0.1],
        "forward": [1.0, host[0]], "backward": [step - 2.0, host[1]], "backward_compute": [2.0, host[1]],
        "optimizer": [1.0, host[2]], "forward_host": [step - 17.0, host[0]], "backward_host": [15.0, host[1]],
        "optimizer_host": [2.0, host[2]],
    }  # fmt: skip
    steps = 20
    made = Window(
        ranks=[0, 1],
        steps=list(range(steps)),
        columns={f"{name}_ns": np.repeat([values], steps, 0).T * MS for name, values in columns.items()}
        | {"host_ahead": np.repeat([[1.0, 0.0]], steps, 0).T},
        counted=np.ones(steps, bool),
    )
    parts = {name: np.full((2, 2), took * MS) for name, took in HOSTS.items()}
    return made, HostPace(parts=parts, step_ns=np.full((2, 2), 27 * MS))


@pytest.mark.parametrize(("more", "cause", "part"), [
    ({"data_wait": 25.0}, "data", "waiting for the loader"),
    ({"outside": 25.0}, "host", "outside forward, backward and optimizer"),
    ({"forward": 25.0}, "host", "forward"),
    ({"data_wait": 1.0}, None, None),  # lateness is mostly that of a device that follows its host
    ({}, None, None),
])  # fmt: skip
def test_a_device_that_follows_its_host_is_no_fault(
    more: dict[str, float], cause: str | None, part: str | None
) -> None:
    made, pace = follows(**more)
    late = sum(more.values()) + (10 - 1) + (15 - 2)  # and what its forward and backward take longer than on rank 0
    why = cause_of(made, 1, late * MS, Limits(), pace)
    assert (why.cause, why.part) == (cause, part) if why is not None else cause is None
    assert why is None or (why.follows and why.excess_ns == 25 * MS)


def test_too_few_steps_say_nothing() -> None:
    assert judge(window(7), None, Limits()).verdict == "undetermined"


@pytest.mark.parametrize("ranks", [2, 4, 16])
@pytest.mark.parametrize("spread", [0.1, 0.3, 1.0])
def test_equal_ranks_are_named_no_more_often_than_stated(ranks: int, spread: float) -> None:
    """Lognormal lateness of independent steps: at the level of 0.003, at most 4 of 300 jobs (P of more is 0.0025)."""
    random = np.random.default_rng(ranks)
    named = 0
    for _ in range(300):
        late = 10 * MS * random.lognormal(0, spread, (ranks, 50))
        named += over_run(late - np.median(late, 0), 100 * MS, Limits()).rank is not None
    assert named <= 4


def test_a_slow_drift_between_equal_ranks_is_not_a_late_rank() -> None:
    """One host runs ahead for 30 steps, then the other: 60 steps are then only a few independent ones."""
    late = np.zeros((2, 60))
    late[0, :28], late[1, 28:] = 8 * MS, 8 * MS
    assert over_run(late, 100 * MS, Limits()).rank is None


def test_chance() -> None:
    assert binomial_tail(10, 10, 0.5) == pytest.approx(2**-10) and binomial_tail(0, 5, 0.5) == 1.0
    assert binomial_tail(2, 3, 0.5) == pytest.approx(0.5)  # (3 + 1) / 8
    assert independent_share(np.array([1.0, -1.0] * 10)) == 1.0 and independent_share(np.ones(9)) == 1.0
    assert independent_share(np.repeat([1.0, -1.0], 20)) < 0.1
    low, high = median_interval(np.arange(1.0, 21.0)) or (0.0, 0.0)
    assert (low, high) == (6.0, 15.0)  # the tabled 95 % interval of a median of 20 values: the 6th and the 15th
    assert median_interval(np.arange(4.0)) is None


def test_a_collection_in_every_fourth_step_of_one_rank() -> None:
    longer = np.zeros((2, 40))
    longer[1, 3::4] = 300.0
    found = slow_steps.find(window(rest=longer), Limits(), {1: [{"step": 3, "place": "train.py:7 loop (collect)"}]})
    assert found is not None
    assert (found.ranks, found.waiting, found.place, found.period) == ([1], [0], "the host", 4)
    assert (found.lost_ms, found.usual_ms, found.where) == (75.0, 97.0, "train.py:7 loop (collect)")
    assert slow_steps.find(window(), Limits(), {}) is None


def paced_by_devices(parts: dict[str, list[float]]) -> Window:
    """Equal steps of two ranks whose hosts lead; ms, by rank."""
    columns = {f"{name}_ns": np.repeat(np.array(ms)[:, None], 40, 1) * MS for name, ms in parts.items()}
    return Window(
        ranks=[0, 1],
        steps=list(range(40)),
        columns=columns | {"host_ahead": np.ones((2, 40))},
        counted=np.ones(40, bool),
    )


@pytest.mark.parametrize(
    ("forward", "backward_compute", "verdict"),
    [
        ([28.0, 38.2], [84.7, 75.2], "undetermined"),  # measured on two H200s, 10 ms of products planted on rank 1
        ([28.0, 28.0], [75.2, 75.2], "none"),
        ([28.0, 28.0], [84.7, 75.2], "persistent"),
    ],
)
def test_ranks_that_wait_in_collectives_may_compute_slower(
    forward: list[float], backward_compute: list[float], verdict: str
) -> None:
    """The other rank needs the same for both passes together: it waits, or has other kernels. The parts do not tell."""
    parts = {"forward": forward, "backward_compute": backward_compute, "optimizer": [2.6, 2.6]}
    end = max(map(sum, zip(forward, backward_compute, strict=True)))
    parts |= {"backward": [end - own + 0.6 for own in forward], "host": [end + 3.2] * 2, "device": [end + 3.2] * 2}
    found = judge(paced_by_devices(parts), None, Limits())
    assert found.verdict == verdict and found.rank == (0 if verdict == "persistent" else None)
    assert (found.reason or "").startswith("rank 1 computes") == (verdict == "undetermined")


def test_the_interval_covers_waits_that_slow_what_the_others_compute() -> None:
    """Forward 10 ms longer; the others' backward pass is 5 ms longer, and they wait for 5 ms."""
    parts = {"forward": [28.0, 38.0], "backward_compute": [80.0, 75.0], "backward": [85.0, 75.0]}
    parts |= {"optimizer": [2.0, 2.0], "host": [115.0] * 2, "device": [115.0] * 2}
    found = judge(paced_by_devices(parts), None, Limits())
    assert found.rank == 1 and found.lateness_ns == pytest.approx(5 * MS)
    assert found.interval_ns is not None
    assert list(found.interval_ns) == pytest.approx([5 * MS, 10 * MS])
