"""The confusion matrix: every scenario of conf/scenario recorded here, what was found, and what the fix brought.

    python benchmarks/scenarios.py --out FOLDER --world-size 2      # on GPUs where there are some, else on the CPU
    python benchmarks/scenarios.py --out FOLDER --only slow_loader,comm_bound --repeats 1

Each scenario is recorded `--repeats` times with the plain and the torch pass; then its `fix` (the advised overrides,
or the fault taken away) with the plain pass alone. Prints the table of docs/validation.md, and writes it to
FOLDER/table.md. What is recorded in FOLDER already is not recorded again. Exits 1 when a planted fault was not found,
or a clean run has a finding of severity high.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from rankscope.conf import RunDir, RunDirError
from rankscope.conf.schema import RunConfig
from rankscope.launch.compose import compose, option_groups
from rankscope.launch.torch_facts import torch_facts

CLEAN = ("none",)
HEAD = (
    "scenario", "planted", "must be found", "found (severity, rank)", "in runs", "promised, ms", "step, ms",
    "with the fix", "brought, ms", "brought / promised",
)  # fmt: skip


class Row(msgspec.Struct, kw_only=True):
    """One scenario: what was found in each repeat, and its steps with and without the fix (ms)."""

    name: str
    config: RunConfig
    found: list[list[dict[str, Any]]]
    steps: list[float]
    fixed: list[float]

    def hit(self, findings: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Return the finding that had to be there, on the right rank."""
        scenario = self.config.scenario
        for item in findings:
            right = scenario.finds_rank is None or item["ranks"] == [scenario.finds_rank]
            if item["id"] in scenario.finds and right:
                return item
        return None

    @property
    def right(self) -> bool:
        """Whether every repeat says what it must."""
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
        ]

    def words(self) -> str:
        """Say what the first repeat found, the costliest first."""
        if not self.found:
            return "not recorded"
        said = [f"{f['id']} ({f['severity']}, {','.join(map(str, f['ranks']))})" for f in self.found[0][:3]]
        return ", ".join(said) or "nothing"


def _calm(findings: list[dict[str, Any]]) -> bool:
    return all(item["severity"] != "high" for item in findings)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def measure(name: str, common: list[str], out: Path, repeats: int) -> Row:
    """Record a scenario and its fix, and read what came out."""
    chosen = [f"+scenario={name}", *common]
    config = compose(chosen)
    row = Row(name=name, config=config, found=[], steps=[], fixed=[])
    for repeat in range(1, repeats + 1):
        summary = record(out / f"{name}-{repeat}", chosen)
        if summary is None:
            continue
        row.found.append(summary["findings"])
        row.steps += _step(summary)
        if config.scenario.fix:
            fixed = record(out / f"{name}-fixed-{repeat}", [*chosen, *config.scenario.fix, "passes=[plain]"])
            row.fixed += _step(fixed)
    return row


def _step(summary: dict[str, Any] | None) -> list[float]:
    rate = None if summary is None else summary["throughput"]
    return [] if rate is None else [rate["step_ms_p50"]]


def record(path: Path, overrides: list[str]) -> dict[str, Any] | None:
    """Run one point unless it is there; returns its summary, None where it failed."""
    run_dir = RunDir(path)
    summary = run_dir.analysis / "summary.json"
    if not summary.exists():
        command = [sys.executable, "-m", "rankscope.conf.cli", "run", *overrides, f"run_dir='{path}'"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 3):
            print(f"{path.name}: {(done.stderr.strip().splitlines() or ['?'])[-1]}", file=sys.stderr)
    try:
        run_dir.read_record()
        found: dict[str, Any] = json.loads(summary.read_text())
        return found
    except (RunDirError, OSError, ValueError):
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs and table.md")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--only", help="names of scenarios, with commas between")
    parser.add_argument("overrides", nargs="*", help="further overrides for every run")
    options = parser.parse_args()
    on_gpu = options.device != "cpu" and bool(torch_facts().devices)
    device = options.device if on_gpu else "cpu"
    names = options.only.split(",") if options.only else option_groups()["scenario"]
    common = [f"world_size={options.world_size}", *options.overrides]
    lines = [f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
    print("\n".join(lines), flush=True)
    agrees = True
    for name in sorted(names, key=lambda item: (item not in CLEAN, item)):
        if compose([f"+scenario={name}", *common]).scenario.gpu and not on_gpu:
            cells = [name, compose([f"+scenario={name}", *common]).scenario.planted, "", "needs a GPU"]
            cells += [""] * (len(HEAD) - len(cells))
        else:
            row = measure(name, [*common, f"device={device}"], options.out, options.repeats)
            agrees &= row.right
            cells = row.cells()
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "table.md").write_text("\n".join(lines) + "\n")
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
