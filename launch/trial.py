"""`rankscope try RUN`: does a finding's advice bring what it promises? Measures it, with and without, in turn.

Input: an analysed run folder. Output: an entry in its trials.json, which the report shows beside the finding.
"""

import shlex
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from rankscope.conf import ConfigError, RunDir, load_config
from rankscope.conf.contract import NO_NUMBERS, OK
from rankscope.conf.files import read_json
from rankscope.conf.trials import Trial, add_trial
from rankscope.launch.cli import run_command
from rankscope.launch.configure.compose import compose
from rankscope.launch.configure.preflight import refuse
from rankscope.launch.point import HINT
from rankscope.launch.run.distortion import step_ns
from rankscope.launch.run.record import record
from rankscope.launch.system.processes import Stop
from rankscope.launch.system.terminal import say
from rankscope.launch.system.torch_facts import TorchFacts, torch_facts

_OWN = ("name=", "run_dir=", "runs_dir=", "passes=", "repeats=", "separate=")  # a trial chooses these itself


@click.command("rankscope try")
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("words", metavar="[FINDING] [KEY=VALUE]...", nargs=-1)
@click.option("--pairs", type=click.IntRange(1), default=3, show_default=True, help="How often each is run.")
def trial(run: Path, words: tuple[str, ...], pairs: int) -> int:
    """Try the overrides that a finding of RUN advises, in turn with the job as it was, and say what they bring.

    FINDING: its id; without it the costliest finding that has overrides. KEY=VALUE: overrides for every run of the
    trial, such as steps=30.
    """
    run_dir = RunDir(run)
    more = [word for word in words if "=" in word]
    chosen = _chosen(run_dir, [word for word in words if "=" not in word])
    own = [*_overrides(run_dir), *_checked(more, chosen)]
    compose([*own, *chosen["overrides"]])
    facts = torch_facts()
    say(f"trying {shlex.join(chosen['overrides'])} for {chosen['id']}: {2 * pairs} runs of the plain pass")
    before: list[float] = []
    after: list[float] = []
    try:
        with Stop() as stop:
            for number in range(1, pairs + 1):
                for name, overrides, times in (("before", [], before), ("after", chosen["overrides"], after)):
                    label = f"{chosen['id']}-{name}-{number}"
                    took = _step_ms([*own, *overrides], run_dir.trial_runs, label, facts, stop)
                    if took is None:
                        say(f"{name} {number}: no step was recorded, so the trial ends")
                        return NO_NUMBERS
                    times.append(took)
                    say(f"{name} {number}: {took:.2f} ms")
    finally:
        if after:  # also if the trial was interrupted: the pairs that are complete count
            found = _judged(chosen, more, before[: len(after)], after)
            add_trial(run_dir, found)
            say(found.sentence)
    return OK


def _chosen(run_dir: RunDir, named: list[str]) -> dict[str, Any]:
    """Return the finding; raises `ConfigError` if the run has none that can be tried."""
    if len(named) > 1:
        raise ConfigError(f"{' '.join(named)}: give one finding; other words must be KEY=VALUE")
    wanted = named[0] if named else None
    path = run_dir.analysis / "summary.json"
    try:
        every = read_json(path)["findings"]
        found = [item for item in every if wanted in (None, item["id"])]
        able = [item for item in found if item["overrides"]]
        others = ", ".join(item["id"] for item in every if item["overrides"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"{path}: cannot be read; analyse the run first: rankscope analyze {run_dir.path}") from None
    if wanted is not None and not found:
        raise ConfigError(f"{run_dir.path}: has no finding {wanted!r}; see rankscope analyze {run_dir.path}")
    if not able and others:
        raise ConfigError(f"{run_dir.path}: {wanted} has no overrides to try; these have some: {others}")
    if not able:
        raise ConfigError(f"{run_dir.path}: no finding here has overrides to try; change the job by hand and compare")
    return max(able, key=lambda item: item["recoverable_ms"] or 0.0)


def _checked(more: list[str], finding: dict[str, Any]) -> list[str]:
    """Return the overrides for every run; raises `ConfigError` for those that the trial itself chooses."""
    tried = tuple(f"{item.partition('=')[0].lstrip('+')}=" for item in finding["overrides"])
    for word in more:
        if word.lstrip("+").startswith((*_OWN, *tried)):
            raise ConfigError(f"{word}: the trial of {finding['id']} chooses this itself; leave it out")
    return more


def _overrides(run_dir: RunDir) -> list[str]:
    """Return the overrides of the run, with the size of its model, for one more plain pass."""
    config = load_config(run_dir.config)
    if config.script is not None:
        raise ConfigError(
            f"{run_dir.path}: a script has no overrides to try; change its arguments and compare two runs"
        )
    kept = [item for item in run_dir.read_record().get("overrides", []) if not item.startswith((*_OWN, "launch.turn="))]
    return [*kept, f"model.size={config.model.size}", "passes=[plain]"]


def _step_ms(overrides: Sequence[str], folder: Path, name: str, facts: TorchFacts, stop: Stop) -> float | None:
    """Run once and return the median step (ms), None if the run failed."""
    keys = [*overrides, f"name={name}", f"runs_dir={folder}"]
    config = compose(keys)
    refuse(config, facts)
    recorded = record(config, keys, facts, stop)
    if recorded.failure is not None:
        say(recorded.failure.text())
        return None
    plain = recorded.run_dir.for_pass("plain")
    took = step_ns(plain, "measured") or step_ns(plain, "measured", "host_ns")
    return None if took is None else took * 1e-6


def _judged(finding: dict[str, Any], more: list[str], before: list[float], after: list[float]) -> Trial:
    gains = [a - b for a, b in zip(before, after, strict=True)]
    return Trial(
        finding=finding["id"],
        overrides=finding["overrides"],
        also=more,
        promised_ms=finding["recoverable_ms"],
        before_ms=[round(value, 4) for value in before],
        after_ms=[round(value, 4) for value in after],
        brought_ms=round(statistics.fmean(gains), 4),
        least_ms=round(min(gains), 4),
        most_ms=round(max(gains), 4),
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def main(argv: Sequence[str]) -> int:
    """Run `rankscope try`; returns the exit status."""
    return run_command(trial, argv, hint=HINT, prefix="rankscope")
