"""Limits of a pass: what counts as a job that stands still, on a clock that the test sets."""

import time
from pathlib import Path

import pytest

from rankscope.conf import RunConfig, RunDir
from rankscope.conf.sections import LaunchConfig
from rankscope.launch.run import torchrun
from rankscope.launch.run.torchrun import _Clock
from rankscope.launch.system.rank_progress import Display, RankProgress

SCRIPT = RunConfig(script="train.py")
SETS_UP, STEPS = RankProgress(phase="setup"), RankProgress(phase="measure", step=5)


def seconds_until_a_stall(config: RunConfig, seen: list[RankProgress], monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Return after how many seconds a rank with one state in each second is stopped for a stall; None if it is not."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = _Clock(config, [RunDir(Path()).for_pass("plain")])
    for second, state in enumerate(seen):
        now = float(second)
        cut = clock.exceeded({0: state})
        if cut is not None:
            return second if cut.kind == "stall" else None
    return None


@pytest.mark.parametrize(
    ("config", "seen", "stopped"),
    [
        pytest.param(SCRIPT, [SETS_UP] * 1000, None, id="a script sets up for any time"),
        pytest.param(RunConfig(compile="max-autotune"), [SETS_UP] * 1000, None, id="a model compiles for any time"),
        pytest.param(RunConfig(), [SETS_UP] * 1000, 301, id="a reference model has nothing else to wait for"),
        pytest.param(SCRIPT, [SETS_UP] * 500 + [STEPS] * 500, 801, id="after its first step a script may hang"),
        pytest.param(
            SCRIPT,
            [RankProgress(phase="measure", step=5, batches=second // 100) for second in range(1000)],
            None,
            id="an evaluation takes batches",
        ),
    ],
)
def test_a_job_that_works_is_not_stopped(
    config: RunConfig, seen: list[RankProgress], stopped: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seconds_until_a_stall(config, seen, monkeypatch) == stopped


def test_waiting_for_other_runs_is_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take any time to wait until others have measured, before setting up and after it."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    config = RunConfig(launch=LaunchConfig(turn="file", timeout_s=100))
    clock = _Clock(config, [RunDir(Path()).for_pass("plain")])
    seen: list[dict[int, RankProgress]] = [{0: RankProgress(phase="turn")}] * 1000 + [{0: SETS_UP}] * 50
    seen += [{0: RankProgress(phase="turn")}] * 1000
    seen += [{0: RankProgress(phase="measure", step=step)} for step in range(200)]
    cuts = []
    for second, ranks in enumerate(seen):
        now = float(second)
        cuts.append(clock.exceeded(ranks))
    first = next(second for second, cut in enumerate(cuts) if cut is not None)
    assert first == pytest.approx(2050 + 50, abs=3)
    cut = cuts[first]
    assert cut is not None and cut.kind == "timeout"
    assert not cut.stands_still  # it made a step a second ago


def test_a_rank_that_hangs_while_others_wait_for_their_turn_is_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = _Clock(RunConfig(world_size=2), [RunDir(Path()).for_pass("plain")])
    while now < 1000 and (cut := clock.exceeded({0: RankProgress(phase="turn"), 1: SETS_UP})) is None:
        now += 1.0
    assert cut is not None and cut.kind == "stall"


@pytest.mark.parametrize("config", [SCRIPT, RunConfig(launch=LaunchConfig(timeout_s=25))])
def test_a_job_that_hangs_from_the_start_stands_still(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may set up for any time, but when its time is over, it is asked what it waits for."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = _Clock(config, [RunDir(Path()).for_pass("plain")])
    cut = None
    while cut is None:
        now += 1.0
        cut = clock.exceeded({0: SETS_UP})
    assert cut.kind == "timeout" and cut.stands_still


def test_ranks_that_report_nothing_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = _Clock(RunConfig(launch=LaunchConfig(turn="file")), [RunDir(Path()).for_pass("plain")])
    while now < 1000 and clock.exceeded({}) is None:
        now += 1.0
    assert now < 1000


def test_a_set_up_ends_with_the_pass_at_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    clock = _Clock(SCRIPT, [RunDir(Path()).for_pass("plain")])
    monkeypatch.setattr(time, "monotonic", lambda: 1801.0)
    cut = clock.exceeded({0: SETS_UP})
    assert cut is not None and cut.kind == "timeout" and "launch.timeout_s=1800" in cut.message


def test_a_trace_that_grows_is_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An export of ten minutes is no stall while the file grows; one that does not grow is, after 300 s."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pass_dir = RunDir(tmp_path).for_pass("torch")
    pass_dir.rank(0).path.mkdir(parents=True)
    clock, exports = _Clock(RunConfig(), [pass_dir]), {0: RankProgress(phase="export", step=9)}
    for minute in range(10):
        now = 60.0 * minute
        pass_dir.rank(0).trace.write_bytes(bytes(minute))
        assert clock.exceeded(exports) is None
    now += 299.0
    assert clock.exceeded(exports) is None
    now += 2.0
    cut = clock.exceeded(exports)
    assert cut is not None and cut.kind == "stall"


def test_an_export_that_computes_is_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(torchrun, "_cpu_s", lambda pid: int(min(now, 1000.0)))
    clock, exports = _Clock(RunConfig(), [RunDir(tmp_path).for_pass("torch")]), {0: RankProgress(phase="export", pid=7)}
    for now in map(float, range(0, 1400, 50)):
        cut = clock.exceeded(exports)
        assert (cut is None) == (now <= 1300)


def test_a_long_export_says_how_much_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([0.0, 5.0, 12.0, 13.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    pass_dir = RunDir(tmp_path).for_pass("torch")
    pass_dir.rank(0).path.mkdir(parents=True)
    pass_dir.rank(0).trace.with_name(".trace.json").write_bytes(bytes(3_000_000))
    with Display([pass_dir], 1) as display:
        for _ in range(4):
            display.update({0: RankProgress(phase="export", step=9)})
    assert capsys.readouterr().err.splitlines() == [
        "torch: starting 1 rank", "torch: export", "torch: export, 3 MB written after 12 s",
    ]  # fmt: skip
