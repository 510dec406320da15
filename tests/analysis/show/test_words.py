"""Sentences of the terminal and of report.md, from parts of a summary."""

import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis import load, summarise
from rankscope.analysis.core.console import Console
from rankscope.analysis.show.markdown import command
from rankscope.analysis.show.terminal import show
from rankscope.analysis.show.words import gain_words, rare_words, recorded_words, run_words, slow_words, warning_lines
from rankscope.conf import RunConfig, RunDir, save_config

TRACES = Path(__file__).parents[2] / "data" / "traces"


def warning(kind: str, message: str, level: str = "warning") -> dict[str, Any]:
    return {"kind": kind, "message": message, "level": level}


@pytest.mark.parametrize(
    ("config", "overrides", "expected"),
    [
        pytest.param(
            RunConfig(script="train.py", script_args=["--epochs", 5, "--note", "it's"]),
            ["script=train.py", "script_args=['--epochs','5','--note','it\\'s']", "world_size=2", "run_dir=/a/b"],
            """rankscope run script=train.py world_size=2 -- --epochs 5 --note "it's\"""",
            id="a script's arguments",
        ),
        pytest.param(
            RunConfig(script="my folder/a.py"),
            ["script='my folder/a.py'"],
            "rankscope run 'script=my folder/a.py'",
            id="a path with a blank",
        ),
        pytest.param(
            RunConfig(),
            ["model=gpt", "passes=[plain,torch]"],
            "rankscope run model=gpt 'passes=[plain,torch]'",
            id="a list, for any shell",
        ),
    ],
)
def test_the_command_that_repeats_a_run_can_be_read(
    config: RunConfig, overrides: list[str], expected: str, tmp_path: Path
) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.record.write_text(json.dumps({"overrides": overrides}))
    save_config(config, run_dir.config)
    assert command(run_dir) == expected
    words = shlex.split(expected)
    assert words[words.index("--") + 1 :] == config.script_argv if "--" in words else not config.script_argv


def test_notes_of_ranks_are_not_alike_and_a_finding_says_its_warning_once() -> None:
    warnings = [
        *(warning("recording", text) for text in ("plain pass: one thing", "plain pass: another thing")),
        *(warning("cpu_collectives", f"{rank}: gloo") for rank in (0, 1)),
        warning("profiler_distorts", "profiling makes a step 2 times as long"),
        warning("no_plain_pass", "not worth a word", "info"),
    ]
    said = warning_lines({"warnings": warnings, "findings": [{"id": "profiler_distorts"}]})
    assert said == ["plain pass: one thing", "plain pass: another thing", "0: gloo (and 1 more like it)"]


def test_what_was_run_comes_first_and_the_status_is_in_words() -> None:
    run = {"versions": "torch 2", "ranks": "2 ranks on CPU", "batch": "4 per rank", "recorded": "today", "job": "a.py"}
    assert run_words({"run": run}) == "a.py; batch 4 per rank; 2 ranks on CPU; torch 2"
    summary = {"steps": [3, 4, 5], "source": "kineto", "missing_ranks": [2], "status": "partial"}
    assert recorded_words(summary) == "3 traced steps analysed (3 to 5); without rank 2; incomplete: see the warnings"


@pytest.mark.parametrize(
    ("gain", "evidence", "said"),
    [
        (None, {}, ": gain unknown"),
        (2.104, {}, ": up to 2.10 ms per step"),
        (0.0, {}, ""),
        (0.0, {"replayed_ms": 0.0}, ": no gain, other work sets the pace"),
    ],
)
def test_gain_of_a_finding(gain: float | None, evidence: dict[str, float], said: str) -> None:
    assert gain_words({"recoverable_ms": gain, "evidence": evidence}, "per step") == said


def test_slow_steps_in_words() -> None:
    slow = {
        "steps": [13], "ranks": [1], "waiting": [0], "place": "forward", "usual_ms": 40.0, "slow_ms": 80.0,
        "lost_ms": 0.2, "mean_ms": 40.2, "period": None, "where": None,
    }  # fmt: skip
    summary = {"slow_steps": slow, "throughput": {"steps": 200}, "world_size": 2, "findings": []}
    said = "In 1 of 200 steps (13) rank 1 spends 40 ms more than usual in forward: 0.2 of 40.2 ms per step."
    assert (slow_words(summary), rare_words(summary)) == ("", said)
    summary |= {"findings": [{"id": "slow_steps"}]}
    assert (slow_words(summary), rare_words(summary)) == (said, "")
    summary |= {"findings": [], "slow_steps": slow | {"waiting": [], "ranks": [0, 1]}}  # nobody at fault: noise
    assert rare_words(summary) == ""


def test_a_narrow_terminal_shortens_no_number() -> None:
    summary = summarise(load(TRACES / "big_straggler_gpu_w4"))
    console = Console(width=40, file=io.StringIO())
    show(summary, console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    for row in summary["per_rank"]:
        assert f"{row['step_ms']:.2f}" in said and f"{row['breakdown_ms']['compute']:.2f}" in said
    assert "…" not in said
    assert re.search(r"(?m)^  high +straggler_compute \(rank 3\)", said)
