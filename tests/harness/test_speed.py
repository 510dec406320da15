"""When the Monitor says that a job has become slower or faster."""

import numpy as np
import pytest

from rankscope.harness.watch.exact_tests import Values
from rankscope.harness.watch.late_rank import REFERENCE
from rankscope.harness.watch.speed import SPEED, Speed

MS = 1e6
EVERY = 5


def test_no_more_false_changes_of_speed_than_stated() -> None:
    alpha, judgements, alarms = 0.02, 0, 0
    for seed in range(30):
        judge, random = Speed(alpha, least=0.0), np.random.default_rng(seed)
        for first in range(0, 800, EVERY):
            alarms += len(judge.add(first, random.pareto(1.5, EVERY) + 1))  # heavy tails: no mean to speak of
            judgements += first >= SPEED + REFERENCE
    assert 0 < alarms <= alpha * judgements


def test_a_change_of_speed_is_dated() -> None:
    random = np.random.default_rng(0)
    times = random.normal(10, 0.3, 600) * MS
    times[350:] *= 1.1
    judge = Speed(1e-6)
    found = [event for first in range(0, 600, EVERY) for event in judge.add(first, times[first : first + EVERY])]
    (event,) = found
    assert abs(event.since - 350) <= 3 and event.step <= 350 + SPEED
    assert event.before_ms == pytest.approx(10, rel=0.02) and event.after_ms == pytest.approx(11, rel=0.02)


def test_a_slow_drift_is_found_against_the_first_steps() -> None:
    random = np.random.default_rng(0)
    times = random.normal(10, 0.3, 3000) * np.linspace(1, 1.2, 3000) * MS
    judge = Speed(1e-6)
    assert any(judge.add(first, times[first : first + EVERY]) for first in range(0, 3000, EVERY))


def changes(times: Values) -> list[int]:
    judge = Speed(1e-6)
    return [event.since for at in range(0, len(times), EVERY) for event in judge.add(at, times[at : at + EVERY])]


@pytest.mark.parametrize(("period", "slow"), [(500, 50), (500, 100), (1000, 500)])
def test_an_evaluation_every_some_steps_is_news_only_at_first(period: int, slow: int) -> None:
    times = np.random.default_rng(0).normal(10, 0.1, 20_000) * MS
    times[np.arange(20_000) % period >= period - slow] *= 1.3
    assert 1 <= len(changes(times)) <= 4


def test_a_job_that_became_faster_and_then_slow_is_slow() -> None:
    """Compared with its first steps it is hardly slower: the steps just before tell."""
    times = np.random.default_rng(0).normal(10, 0.1, 8000) * np.interp(np.arange(8000), [0, 2000], [1, 0.96]) * MS
    times[4000:] *= 1.085
    assert any(abs(since - 4000) <= 3 for since in changes(times))


def test_a_few_odd_steps_change_nothing() -> None:
    times = np.random.default_rng(0).normal(10, 0.3, 600) * MS
    times[300:310] *= 20  # a checkpoint
    judge = Speed(1e-6)
    assert not any(judge.add(first, times[first : first + EVERY]) for first in range(0, 600, EVERY))
