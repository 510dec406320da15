"""Limits of a pass: what counts as a job that stands still, on a clock that the test sets."""

import time
from pathlib import Path

import pytest

from rankscope.conf import RunConfig, RunDir
from rankscope.launch.run.torchrun import _Clock
from rankscope.launch.system.rank_progress import RankProgress

SETS_UP, STEPS = RankProgress(phase="setup"), RankProgress(phase="measure", step=5)


def seconds_until_a_stall(config: RunConfig, seen: list[RankProgress], monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Return after how many seconds a rank with one state in each second is stopped for a stall; None if it is not."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = _Clock(config, RunDir(Path()).for_pass("plain"))
    for second, state in enumerate(seen):
        now = float(second)
        cut = clock.exceeded({0: state})
        if cut is not None:
            return second if cut.kind == "stall" else None
    return None


@pytest.mark.parametrize(
    ("script", "seen", "stopped"),
    [
        pytest.param("train.py", [SETS_UP] * 1000, None, id="a script sets up for any time"),
        pytest.param(None, [SETS_UP] * 1000, 301, id="a reference model does not"),
        pytest.param("train.py", [SETS_UP] * 500 + [STEPS] * 500, 801, id="after its first step a script may hang"),
        pytest.param(
            "train.py",
            [RankProgress(phase="measure", step=5, batches=second // 100) for second in range(1000)],
            None,
            id="an evaluation takes batches",
        ),
    ],
)
def test_a_job_that_works_is_not_stopped(
    script: str | None, seen: list[RankProgress], stopped: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seconds_until_a_stall(RunConfig(script=script), seen, monkeypatch) == stopped


def test_a_set_up_ends_with_the_pass_at_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    clock = _Clock(RunConfig(script="train.py"), RunDir(Path()).for_pass("plain"))
    monkeypatch.setattr(time, "monotonic", lambda: 1801.0)
    cut = clock.exceeded({0: SETS_UP})
    assert cut is not None and cut.kind == "timeout" and "launch.timeout_s=1800" in cut.message
