"""Records the confusion matrix: every scenario of conf/scenario, what was found, and how much the fix saved.

    python benchmarks/scenarios.py --out FOLDER --world-size 2      # on GPUs if there are any, otherwise on the CPU
    python benchmarks/scenarios.py --out FOLDER --only slow_loader,comm_bound --repeats 1
    python benchmarks/scenarios.py --out FOLDER --base model.size=small --jobs 6    # as in docs/validation.md, on GPUs

Each scenario is recorded `--repeats` times with the plain and the torch pass. Then its `fix` (the advised overrides,
or the removal of the fault) is recorded with only the plain pass. Prints the table of docs/validation.md and writes
it to FOLDER/table.md. Existing recordings in FOLDER are reused. `--base` applies to the scenarios that choose no
model themselves; NAME:key=value applies only to the scenario NAME. With `--jobs`, runs start and are analysed in
parallel, but measure one after another. After `--seconds`, no further run is started. Exits 1 if a planted fault was
not found, or if a clean run has a finding of severity high.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import yaml

from rankscope.analysis import load
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.explain.as_changes import changes_of
from rankscope.analysis.replay.predict import predict
from rankscope.conf import RunDir, RunDirError
from rankscope.conf.schema import RunConfig
from rankscope.launch.configure.compose import compose, option_groups
from rankscope.launch.system.torch_facts import torch_facts

CLEAN = ("none",)
HEAD = (
    "scenario", "planted", "must be found", "found (severity, rank)", "in runs", "promised, ms", "step, ms",
    "with the fix", "saved, ms", "saved / promised", "replayed without it, ms", "replayed / with the fix",
)  # fmt: skip


class Row(msgspec.Struct, kw_only=True):
    """One scenario: what was found in each repeat, and its steps with and without the fix (ms)."""

    name: str
    config: RunConfig
    found: list[list[dict[str, Any]]]
    steps: list[float]
    fixed: list[float]
    replayed: list[float]  # the step that `rankscope whatif` predicts without the finding

    def hit(self, findings: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Return the expected finding on the expected rank, or None."""
        scenario = self.config.scenario
        for item in findings:
            right = scenario.finds_rank is None or item["ranks"] == [scenario.finds_rank]
            if item["id"] in scenario.finds and right:
                return item
        return None

    @property
    def right(self) -> bool:
        """Whether every repeat has the expected findings."""
        if not self.config.scenario.finds:
            return all(item["severity"] != "high" for findings in self.found for item in findings)
        return bool(self.found) and all(self.hit(findings) for findings in self.found)

    def cells(self) -> list[str]:
        """Return the row of the table."""
        scenario, hits = self.config.scenario, [self.hit(findings) for findings in self.found]
        known = [item for item in hits if item is not None]
        gains = [item["recoverable_ms"] for item in known if item["recoverable_ms"] is not None]
        promised = statistics.median(gains) if gains else None
        step, fixed = (statistics.median(values) if values else None for values in (self.steps, self.fixed))
        brought = step - fixed if step is not None and fixed is not None else None
        share = brought / promised if brought is not None and promised else None
        expected = " or ".join(scenario.finds) or "nothing high"
        rank = "" if scenario.finds_rank is None else f", rank {scenario.finds_rank}"
        good = len(known) if scenario.finds else sum(_calm(findings) for findings in self.found)
        numbers = [_number(value) for value in (promised, step, fixed, brought)]
        return [
            self.name,
            scenario.planted,
            expected + rank,
            self.words(),
            f"{good} of {len(self.found)}",
            *numbers,
            "" if share is None else f"{share:.0%}",
            *self._of_replay(fixed),
        ]

    def _of_replay(self, fixed: float | None) -> list[str]:
        if not self.replayed:
            return ["", ""]
        predicted = statistics.median(self.replayed)
        return [_number(predicted), f"{predicted / fixed - 1:+.1%}" if fixed else ""]

    def words(self) -> str:
        """Return the first repeat's findings as text, costliest first."""
        if not self.found:
            return "not recorded"
        said = [f"{f['id']} ({f['severity']}, {','.join(map(str, f['ranks']))})" for f in self.found[0][:3]]
        return ", ".join(said) or "nothing"


def _calm(findings: list[dict[str, Any]]) -> bool:
    return all(item["severity"] != "high" for item in findings)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


class Scenario(msgspec.Struct, kw_only=True, frozen=True):
    """One scenario to record, with `overrides` in addition to those of its file."""

    name: str
    overrides: list[str]
    out: Path
    repeats: int

    @property
    def config(self) -> RunConfig:
        """The composed configuration."""
        return compose([f"+scenario={self.name}", *self.overrides])

    def runs(self, repeat: int) -> list[tuple[Path, list[str]]]:
        """Return folder and overrides of one repeat, and of its fix if it has one."""
        chosen = [f"+scenario={self.name}", *self.overrides]
        found = [(self.out / f"{self.name}-{repeat}", chosen)]
        if fix := self.config.scenario.fix:
            found.append((self.out / f"{self.name}-fixed-{repeat}", [*chosen, *fix, "passes=[plain]"]))
        return found

    def row(self) -> Row:
        """Read the results of all runs."""
        row = Row(name=self.name, config=self.config, found=[], steps=[], fixed=[], replayed=[])
        for path, _ in [run for repeat in range(1, self.repeats + 1) for run in self.runs(repeat)]:
            summary = read(path)
            if summary is not None and "-fixed-" in path.name:
                row.fixed += _step(summary)
            elif summary is not None:
                row.found.append(summary["findings"])
                row.steps += _step(summary)
                row.replayed += _replayed(path, row.hit(summary["findings"]))
        return row


def _replayed(path: Path, hit: dict[str, Any] | None) -> list[float]:
    """Return the step that the replay predicts without the expected finding; empty if there is nothing to replay."""
    if hit is None:
        return []
    try:
        analysis = load(path)
        changes = changes_of([hit["id"]], analysis.findings, analysis.world_size, gpu=analysis.on_gpu)
        return [predict(analysis, changes, analysis.without.step_ms).predicted_ms]
    except AnalysisError:
        return []


def _step(summary: dict[str, Any] | None) -> list[float]:
    rate = None if summary is None else summary["throughput"]
    return [] if rate is None else [rate["step_ms_p50"]]


def record(path: Path, overrides: list[str], end: float) -> None:
    """Run one point unless its summary exists or the time is over."""
    if (RunDir(path).analysis / "summary.json").exists():
        return
    began = time.monotonic()
    if began > end:
        print(f"{path.name}: not recorded, because the time was over", flush=True)
        return
    if path.exists():  # interrupted: kept, under another name
        path.rename(path.with_name(f"{path.name}.broken-{time.time_ns()}"))
    command = [sys.executable, "-m", "rankscope.conf.cli", "run", *overrides, f"run_dir='{path}'"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(f"{path.name}: exit status {done.returncode}, {time.monotonic() - began:.0f} s", flush=True)
    if done.returncode not in (0, 3):
        print(f"{path.name}: {(done.stderr.strip().splitlines() or ['?'])[-1]}", file=sys.stderr)


def read(path: Path) -> dict[str, Any] | None:
    """Return the summary of a run, or None if it failed."""
    try:
        RunDir(path).read_record()
        found: dict[str, Any] = json.loads((RunDir(path).analysis / "summary.json").read_text())
        return found
    except (RunDirError, OSError, ValueError):
        return None


def settings(name: str) -> dict[str, Any]:
    """Return the settings in a scenario's file."""
    found: dict[str, Any] = yaml.safe_load(files("rankscope.conf").joinpath("scenario", f"{name}.yaml").read_text())
    return found


def needs_gpu(name: str) -> bool:
    """Whether a scenario cannot be planted on a CPU."""
    found = settings(name)
    return bool(found.get("scenario", found).get("gpu", False))


def base_of(name: str, base: list[str]) -> list[str]:
    """Return the `--base` overrides of a scenario: only those with its name if its file chooses the model."""
    named = [item.partition(":") for item in base]
    own = [value for key, colon, value in named if colon and key == name]
    return own if "model" in settings(name) else [item for item in base if ":" not in item] + own


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs and table.md")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--only", help="names of scenarios, separated by commas")
    parser.add_argument("--base", nargs="*", default=[], help="overrides for the scenarios that choose no model")
    parser.add_argument("--jobs", type=int, default=1, help="runs that start in parallel")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no run later than this")
    parser.add_argument("overrides", nargs="*", help="further overrides for every run")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    on_gpu = options.device == "cuda" or (options.device == "auto" and bool(torch_facts().devices))
    options.out.mkdir(parents=True, exist_ok=True)
    common = [f"world_size={options.world_size}", f"device={options.device if on_gpu else 'cpu'}", *options.overrides]
    if options.jobs > 1 and not any(item.startswith("launch.turn=") for item in common):
        common.append(f"launch.turn='{(options.out / 'turn').absolute()}'")
    named = options.only.split(",") if options.only else option_groups()["scenario"]
    names = [name for name in named if on_gpu or not needs_gpu(name)]
    scenarios = [
        Scenario(
            name=name,
            overrides=[*base_of(name, options.base), *common],
            out=options.out,
            repeats=options.repeats,
        )
        for name in sorted(names, key=lambda item: (item not in CLEAN, item))
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        for repeat in range(1, options.repeats + 1):
            runs = [run for item in scenarios for run in item.runs(repeat)]
            list(pool.map(lambda run: record(run[0], run[1], end), runs))
    rows = [scenario.row() for scenario in scenarios]
    lines = [f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}", *(f"| {' | '.join(row.cells())} |" for row in rows)]
    print("\n".join(lines))
    (options.out / "table.md").write_text("\n".join(lines) + "\n")
    return 0 if all(row.right for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
