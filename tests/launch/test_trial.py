"""`rankscope try` with real runs: with and without a finding's overrides in turn, and the outcome in the run folder."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from rankscope.conf import LAYOUT_VERSION, RunDir, load_config, parse_config, save_config
from rankscope.conf.trials import Trial, read_trials
from rankscope.launch.system.processes import Interrupted
from rankscope.launch.trial import main

KEYS = ["model=mlp", "ddp=off", "device=cpu", "steps=12", "seconds=0", "warmup_steps=3", "batch_size=64"]


@pytest.fixture
def analysed(tmp_path: Path) -> RunDir:
    """A run with a finding whose fix is certain: a batch of one instead of 64 samples."""
    run_dir = RunDir(tmp_path / "run")
    run_dir.analysis.mkdir(parents=True)
    keys = {"model": {"name": "mlp", "size": "tiny"}, "ddp": {"enabled": False}, "device": "cpu"}
    save_config(parse_config(keys), run_dir.config)
    run_dir.record.write_text(json.dumps({"layout": LAYOUT_VERSION, "overrides": ["name=first", *KEYS]}))
    found = [
        {"id": "exposed_comm", "overrides": [], "recoverable_ms": 9.0},
        {"id": "host_gap", "overrides": ["batch_size=1", "model.size=tiny"], "recoverable_ms": 2.0},
    ]
    (run_dir.analysis / "summary.json").write_text(json.dumps({"findings": found}))
    return run_dir


def test_a_finding_is_tried_in_turn_with_the_job_as_it_was(analysed: RunDir) -> None:
    assert main([str(analysed.path), "steps=13", "--pairs", "1"]) == 0
    (trial,) = read_trials(analysed)
    assert trial.also == ["steps=13"] and trial.sentence.endswith(("with steps=13", "noise", "longer"))
    assert (trial.finding, trial.promised_ms, len(trial.before_ms), len(trial.after_ms)) == ("host_gap", 2.0, 1, 1)
    assert trial.brought_ms == pytest.approx(trial.before_ms[0] - trial.after_ms[0], abs=1e-3)
    names = sorted(path.name.split("-", 2)[2] for path in analysed.trial_runs.iterdir())
    assert names == ["host_gap-after-1", "host_gap-before-1"]
    assert {load_config(RunDir(path).config).steps for path in analysed.trial_runs.iterdir()} == {13}


def test_complete_pairs_of_an_interrupted_trial_are_kept(analysed: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([5.0, 4.0, 5.5])

    def step_ms(*_: object) -> float:
        for took in times:
            return took
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setitem(main.__globals__, "_step_ms", step_ms)
    assert main([str(analysed.path)]) == 128 + signal.SIGTERM
    (trial,) = read_trials(analysed)
    assert (trial.before_ms, trial.after_ms, trial.brought_ms) == ([5.0], [4.0], 1.0)


@pytest.mark.parametrize(("words", "said"), [
    ("nothing", "has no finding 'nothing'; see rankscope analyze"),
    ("exposed_comm", "exposed_comm has no overrides to try; these have some: host_gap"),
    ("host_gap exposed_comm", "give one finding"),
    ("batch_size=2", "batch_size=2: the trial of host_gap chooses this itself; leave it out"),
    ("passes=[torch]", "passes=[torch]: the trial of host_gap chooses this itself"),
    ("run_dir=elsewhere", "run_dir=elsewhere: the trial of host_gap chooses this itself"),
    ("stepz=3", "did you mean steps"),
])  # fmt: skip
def test_what_cannot_be_tried_is_refused(
    words: str, said: str, analysed: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, before anything is run."""
    assert main([str(analysed.path), *words.split(" ")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and not read_trials(analysed)


def test_a_range_around_nothing_is_noise() -> None:
    keys: dict[str, Any] = {"finding": "host_gap", "overrides": ["a=1"], "promised_ms": 2.0, "measured": ""}
    times: dict[str, Any] = {"before_ms": [20.0, 22.0], "after_ms": [21.0, 18.0]}
    noise = Trial(**keys, **times, brought_ms=1.5, least_ms=-1.0, most_ms=4.0)
    assert noise.sentence.endswith("no more than noise")
    real = Trial(**keys, **times, brought_ms=3.0, least_ms=2.0, most_ms=4.0)
    assert real.sentence == (
        "host_gap: promised at most 2.00 ms, brought 3.00 of 21.00 ms per step (2.00 to 4.00 in 2 pairs)"
    )
