"""What a sweep says of its duration, and of ranks that share cores."""

import time

import pytest

from rankscope.conf import RunConfig
from rankscope.launch.configure import preflight
from rankscope.launch.pace import Pace, announcement, duration
from rankscope.launch.system.torch_facts import TorchFacts


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0 s"), (59.4, "59 s"), (60, "1 min"), (330, "5 min 30 s"), (7500, "2 h 5 min")]
)
def test_a_duration_in_words(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_sweep_says_before_it_starts_what_it_measures() -> None:
    """A point with three repeats has one start for all windows, and two more for the repeats of the plain one."""
    config = RunConfig(repeats=3, seconds=10.0)
    said = announcement([config, config])
    assert said.startswith("2 points, for which ranks are started 6 times") and "take 1 min or more" in said


def test_what_is_left_follows_from_the_points_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace = Pace(3)
    now = 130.0
    assert pace.ended() == "30 s so far, about 1 min left"
    now = 190.0
    assert pace.ended() == "1 min 30 s so far, about 45 s left"
    now = 220.0
    assert pace.ended() == "2 min so far, nothing left"


@pytest.mark.parametrize(("ranks", "device", "gpus", "shares"), [
    (4, "auto", 0, True), (2, "auto", 0, False), (4, "auto", 8, False), (4, "cpu", 8, True),
])  # fmt: skip
def test_ranks_that_share_cores_are_told_so(
    ranks: int, device: str, gpus: int, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "usable_cores", lambda: 2)
    facts = TorchFacts(devices=({"name": "GPU"},) * gpus)
    said = preflight.shared_cores(RunConfig(world_size=ranks, device=device), facts)  # type: ignore[arg-type]
    assert (said is not None) == shares
